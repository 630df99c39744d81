from streamctx.client.client import Client as Client
from streamctx.client.client import ClientCounters as ClientCounters
from streamctx.client.client import connect as connect
from streamctx.client.document import Document as Document
from streamctx.client.faults import FaultRates as FaultRates
from streamctx.client.faults import MessageFaults as MessageFaults
from streamctx.client.observation import Observation as Observation
from streamctx.client.observation import ObservationChange as ObservationChange
from streamctx.client.outbox import OutboxStatus as OutboxStatus
from streamctx.core.session.client_events import DocumentRefusal as DocumentRefusal
from streamctx.core.session.client_events import Refusal as Refusal
from streamctx.core.session.observed import ObservedSession as ObservedSession
from streamctx.errors import CloseCode as CloseCode
from streamctx.errors import ConfigurationError as ConfigurationError
from streamctx.errors import ErrorCode as ErrorCode
from streamctx.errors import EventRefused as EventRefused
from streamctx.errors import LocalProtocolError as LocalProtocolError
from streamctx.errors import RemoteProtocolError as RemoteProtocolError
from streamctx.errors import SessionClosed as SessionClosed
from streamctx.errors import StreamctxError as StreamctxError
from streamctx.limits import Limits as Limits
from streamctx.server.embedding import serve as serve
from streamctx.vocabulary import DigestAlgorithm as DigestAlgorithm
from streamctx.vocabulary import Encoding as Encoding
from streamctx.vocabulary import HashAlgorithm as HashAlgorithm
from streamctx.vocabulary import Unit as Unit
from streamctx.wire.changes import Change as Change

__all__: list[str]
__version__: str
