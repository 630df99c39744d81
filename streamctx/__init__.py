"""One server that editors stream their live context into, and that agents read it from.

The public names are loaded when they are first used: importing the package costs next to nothing. Type
checkers read them in `__init__.pyi`; imports here, even for them alone, would tie every layer to every other.
"""

from __future__ import annotations

from importlib import import_module

__all__ = [
    "Change",
    "Client",
    "ClientCounters",
    "CloseCode",
    "ConfigurationError",
    "DigestAlgorithm",
    "Document",
    "DocumentRefusal",
    "Encoding",
    "ErrorCode",
    "EventRefused",
    "FaultRates",
    "HashAlgorithm",
    "Limits",
    "LocalProtocolError",
    "MessageFaults",
    "Observation",
    "ObservationChange",
    "ObservedSession",
    "OutboxStatus",
    "Refusal",
    "RemoteProtocolError",
    "SessionClosed",
    "StreamctxError",
    "Unit",
    "__version__",
    "connect",
    "serve",
]

__version__ = "0.1.0"

_MODULES = {
    "streamctx.client.client": ("Client", "ClientCounters", "connect"),
    "streamctx.client.document": ("Document",),
    "streamctx.client.faults": ("FaultRates", "MessageFaults"),
    "streamctx.client.observation": ("Observation", "ObservationChange"),
    "streamctx.client.outbox": ("OutboxStatus",),
    "streamctx.core.session.client_events": ("DocumentRefusal", "Refusal"),
    "streamctx.core.session.observed": ("ObservedSession",),
    "streamctx.errors": (
        "CloseCode",
        "ConfigurationError",
        "ErrorCode",
        "EventRefused",
        "LocalProtocolError",
        "RemoteProtocolError",
        "SessionClosed",
        "StreamctxError",
    ),
    "streamctx.limits": ("Limits",),
    "streamctx.server.embedding": ("serve",),
    "streamctx.vocabulary": ("DigestAlgorithm", "Encoding", "HashAlgorithm", "Unit"),
    "streamctx.wire.changes": ("Change",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
