/**
 * One WebSocket behind four verbs, so that faults, and tests without a network, can take its place.
 *
 * @typedef {object} LinkHandlers
 * @property {() => void} open
 * @property {(data: Uint8Array | string) => void} message
 * @property {(code: number) => void} close called once; 1006 when there was no close frame
 *
 * @typedef {object} Link
 * @property {(data: Uint8Array | string) => void} send
 * @property {(code?: number) => void} close
 *
 * @typedef {(url: string, subprotocol: string, handlers: LinkHandlers) => Link} Connect
 */

/** @type {Connect} */
export function connectWebSocket(url, subprotocol, handlers) {
  const socket = new WebSocket(url, subprotocol);
  socket.binaryType = 'arraybuffer';
  let isClosed = false;
  const closed = (code) => {
    if (isClosed) return;
    isClosed = true;
    handlers.close(code);
  };
  socket.addEventListener('open', () => handlers.open());
  socket.addEventListener('message', ({ data }) => {
    if (!isClosed) handlers.message(typeof data === 'string' ? data : new Uint8Array(data));
  });
  socket.addEventListener('close', ({ code }) => closed(code));
  // A close follows an error, except where the attempt to connect fails.
  socket.addEventListener('error', () => setTimeout(() => closed(1006), 100));
  return {
    send: (data) => {
      if (socket.readyState === WebSocket.OPEN) socket.send(data);
    },
    close: (code) => socket.close(code),
  };
}
