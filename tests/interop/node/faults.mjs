/** Faults between a session and its socket, in both directions, repeatable by their seed. */

import net from 'node:net';
import { flipBit } from './frames.mjs';
import { between } from './random.mjs';

/**
 * @typedef {{drop: number, dup: number, reorder: number, corrupt: number, cut: number}} Rates probabilities per message
 * @typedef {Record<'dropped' | 'duplicated' | 'reordered' | 'corrupted' | 'cuts', number>} Tally
 */

const HELD_BEHIND_MAX = 8;
const HELD_MS_MAX = 250;
const NAMES = ['drop', 'dup', 'reorder', 'corrupt', 'cut'];

/** @returns {Rates} from text such as `drop=0.02,cut=0.001` */
export function parseRates(text) {
  const rates = { drop: 0, dup: 0, reorder: 0, corrupt: 0, cut: 0 };
  for (const part of text.split(',').filter(Boolean)) {
    const [name, value] = part.split('=');
    if (!NAMES.includes(name) || !(Number(value) >= 0 && Number(value) <= 1)) throw new Error(`unknown fault: ${part}`);
    rates[name] = Number(value);
  }
  return rates;
}

/** One direction. What is held back is released behind later messages, or after a time, so nothing is held for ever. */
class FaultyPipe {
  constructor({ rates, random, clock, tally, forward, cut }) {
    Object.assign(this, { rates, random, clock, tally, forward, cut });
    this.held = new Set();
    this.isOpen = true;
  }

  happens(name, counter) {
    if (this.random() >= this.rates[name]) return false;
    this.tally[counter] += 1;
    return true;
  }

  push(data) {
    if (!this.isOpen) return;
    if (this.happens('cut', 'cuts')) return this.cut();
    if (this.happens('drop', 'dropped')) return this.passed();
    const passed = this.happens('corrupt', 'corrupted') ? flipBit(data, this.random()) : data;
    if (this.happens('dup', 'duplicated')) this.forward(passed);
    if (this.happens('reorder', 'reordered')) return this.hold(passed);
    this.forward(passed);
    this.passed();
  }

  hold(data) {
    const entry = { data, left: between(this.random, 1, HELD_BEHIND_MAX), timer: null };
    entry.timer = this.clock.after(() => this.release(entry), 1 + this.random() * HELD_MS_MAX);
    this.held.add(entry);
  }

  release(entry) {
    this.clock.cancel(entry.timer);
    if (this.held.delete(entry) && this.isOpen) this.forward(entry.data);
  }

  /** A message went by: those that wait behind it come closer. */
  passed() {
    for (const entry of [...this.held]) {
      entry.left -= 1;
      if (entry.left <= 0) this.release(entry);
    }
  }

  end() {
    this.isOpen = false;
    for (const entry of this.held) this.clock.cancel(entry.timer);
    this.held.clear();
  }
}

/**
 * @param {import('./link.mjs').Connect} connect
 * @param {{rates: Rates, random: () => number, clock: import('./clock.mjs').Clock, tally: Tally, cut: () => void}} options
 * @returns {import('./link.mjs').Connect}
 */
export function withFaults(connect, { rates, random, clock, tally, cut }) {
  return (url, subprotocol, handlers) => {
    const shared = { rates, random, clock, tally, cut };
    const incoming = new FaultyPipe({ ...shared, forward: (data) => handlers.message(data) });
    const link = connect(url, subprotocol, {
      open: () => handlers.open(),
      message: (data) => incoming.push(data),
      close: (code) => {
        incoming.end();
        outgoing.end();
        handlers.close(code);
      },
    });
    const outgoing = new FaultyPipe({ ...shared, forward: (data) => link.send(data) });
    return {
      send: (data) => outgoing.push(data),
      close: (code) => {
        outgoing.end();
        link.close(code);
      },
    };
  };
}

/** @returns {Tally} */
export const newTally = () => ({ dropped: 0, duplicated: 0, reordered: 0, corrupted: 0, cuts: 0 });

/**
 * A TCP relay on this machine. Cutting it destroys the sockets with whatever is in them, which is what a lost network
 * looks like; a WebSocket of the browser kind can only be closed politely.
 *
 * @param {string} host
 * @param {number} port
 * @returns {Promise<{port: number, cut: () => void, close: () => void}>}
 */
export function startRelay(host, port) {
  const sockets = new Set();
  const cut = () => {
    for (const socket of sockets) socket.destroy();
    sockets.clear();
  };
  const join = (from, to) => {
    sockets.add(from);
    from.setNoDelay(true);
    from.on('error', () => to.destroy());
    from.on('close', () => {
      sockets.delete(from);
      to.destroy();
    });
    from.pipe(to);
  };
  const server = net.createServer((near) => {
    const far = net.connect(port, host);
    join(near, far);
    join(far, near);
  });
  return new Promise((resolve, reject) => {
    server.on('error', reject);
    server.listen(0, '127.0.0.1', () => {
      const address = /** @type {net.AddressInfo} */ (server.address());
      const close = () => {
        cut();
        server.close();
      };
      resolve({ port: address.port, cut, close });
    });
  });
}
