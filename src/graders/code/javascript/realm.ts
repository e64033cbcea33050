/**
 * The script that runs first in both interpreters, the one with the code under test and the one with its tests: values and calls between
 * them, as texts of JSON.
 *
 * What crosses is data, copied. Everything else (functions, instances of classes) stays where it is, and the other side gets a stand-in that
 * asks for what it needs. The tests answer nothing but calls of functions that they passed themselves. A stand-in is equal to itself only.
 */

/** An expression: `(send, pump, isTester) => peer`. `send` carries a request over and brings the reply; `pump` runs pending promises. */
export const REALM = `
(function (send, pump, isTester) {
  'use strict';
  const { stringify, parse } = JSON;
  const MOST_DEPTH = 100;
  const peer = { gone: false, timers: [] };
  const objects = new Map();
  const ids = new WeakMap();
  const standIns = new Map();
  const idOfStandIn = new WeakMap();
  let lastId = 0;
  const functions = new Map();

  let timerId = 0;
  let clock = 0;
  globalThis.setTimeout = (fn, ms = 0, ...args) => {
    peer.timers.push({ id: ++timerId, at: clock + Math.max(0, Number(ms) || 0), run: () => fn(...args) });
    return timerId;
  };
  globalThis.clearTimeout = (id) => {
    peer.timers = peer.timers.filter((timer) => timer.id !== id);
  };
  globalThis.setImmediate = (fn, ...args) => setTimeout(fn, 0, ...args);
  globalThis.queueMicrotask = (fn) => void Promise.resolve().then(() => fn());
  globalThis.setInterval = (fn, ms, ...args) => {
    const id = ++timerId;
    const again = () => peer.timers.push({ id, at: clock + Math.max(1, Number(ms) || 0), run: () => { again(); fn(...args); } });
    again();
    return id;
  };
  globalThis.clearInterval = globalThis.clearImmediate = globalThis.clearTimeout;
  /** Time does not pass by itself: the next timer is due at once. */
  peer.turn = () => {
    pump();
    const next = peer.timers.reduce((best, timer) => (best === undefined || timer.at < best.at ? timer : best), undefined);
    if (next === undefined) return false;
    clearTimeout(next.id);
    clock = next.at;
    next.run();
    pump();
    return true;
  };
  peer.settled = (promise) => {
    let state;
    promise.then((value) => { state = [true, value]; }, (error) => { state = [false, error]; });
    pump();
    while (state === undefined && peer.turn());
    return state ?? [false, new Error('a promise that is never settled')];
  };

  function reference(value) {
    let id = typeof value === 'symbol' ? undefined : ids.get(value);
    if (id === undefined) {
      id = ++lastId;
      if (typeof value !== 'symbol') ids.set(value, id);
      objects.set(id, value);
    }
    return { o: [id, typeof value === 'function'] };
  }

  function encode(value, depth = 0) {
    if (depth > MOST_DEPTH) throw new RangeError('nested too deeply');
    const inner = (item) => encode(item, depth + 1);
    switch (typeof value) {
      case 'undefined': return { u: 1 };
      case 'boolean': case 'string': return value;
      case 'number': return Number.isFinite(value) && !Object.is(value, -0) ? value : { n: Object.is(value, -0) ? '-0' : String(value) };
      case 'bigint': return { B: String(value) };
      case 'symbol': return reference(value);
    }
    if (value === null) return null;
    if (idOfStandIn.has(value)) return { back: idOfStandIn.get(value) };
    if (typeof value === 'function') return reference(value);
    if (Array.isArray(value)) return { l: Array.from(value, inner) };
    if (value instanceof Promise) { const [ok, result] = peer.settled(value); return { P: [ok, inner(result)] }; }
    if (value instanceof Map) return { m: [...value].map(([key, item]) => [inner(key), inner(item)]) };
    if (value instanceof Set) return { s: [...value].map(inner) };
    if (value instanceof Date) return { D: value.getTime() };
    if (value instanceof RegExp) return { R: [value.source, value.flags] };
    if (value instanceof Error) return { E: [String(value.name), String(value.message)] };
    if (ArrayBuffer.isView(value) && !(value instanceof DataView)) return { T: [value.constructor.name, Array.from(value, inner)] };
    const proto = Object.getPrototypeOf(value);
    const isPlain = proto === Object.prototype || proto === null;
    const entries = Object.entries(value);
    if (!isPlain || entries.some(([, item]) => typeof item === 'function')) return reference(value);
    return { d: entries.map(([key, item]) => [key, inner(item)]) };
  }

  const ERRORS = { Error, TypeError, RangeError, SyntaxError, ReferenceError, EvalError, URIError };
  const ARRAYS = { Int8Array, Uint8Array, Uint8ClampedArray, Int16Array, Uint16Array, Int32Array, Uint32Array, Float32Array, Float64Array, BigInt64Array, BigUint64Array };

  function decode(data) {
    if (typeof data !== 'object' || data === null) return data;
    const [tag] = Object.keys(data);
    const inner = data[tag];
    switch (tag) {
      case 'u': return undefined;
      case 'n': return Number(inner);
      case 'B': return BigInt(inner);
      case 'l': return inner.map(decode);
      case 'm': return new Map(inner.map(([key, item]) => [decode(key), decode(item)]));
      case 's': return new Set(inner.map(decode));
      case 'D': return new Date(inner);
      case 'R': return new RegExp(inner[0], inner[1]);
      case 'T': return new ARRAYS[inner[0]](inner[1].map(decode));
      case 'P': return inner[0] ? Promise.resolve(decode(inner[1])) : Promise.reject(decode(inner[1]));
      case 'back': return objects.get(inner);
      case 'o': return standIn(inner[0], inner[1] === true);
      case 'd': {
        const made = {};
        for (const [key, item] of inner) Object.defineProperty(made, String(key), { value: decode(item), writable: true, enumerable: true, configurable: true });
        return made;
      }
      case 'E': {
        const error = new (ERRORS[inner[0]] ?? Error)(String(inner[1]));
        if (ERRORS[inner[0]] === undefined) error.name = String(inner[0]);
        return error;
      }
    }
    throw new TypeError('not a value');
  }

  function ask(request, originals = []) {
    const reply = parse(send(stringify(request)));
    if (reply.gone !== undefined) {
      peer.gone = true;
      throw new Error(reply.gone);
    }
    for (const [place, changed] of reply.changed ?? []) putBack(originals[place], decode(changed));
    if ('raised' in reply) throw decode(reply.raised);
    return decode(reply.value);
  }
  peer.ask = ask;

  globalThis.structuredClone = (value) => {
    if (typeof value === 'function' || typeof value === 'symbol') throw new TypeError('it cannot be cloned');
    return decode(encode(value));
  };

  const isData = (value) => typeof value === 'object' && value !== null && !idOfStandIn.has(value);

  function putBack(original, changed) {
    if (Array.isArray(original)) original.splice(0, original.length, ...changed);
    else if (original instanceof Map) { original.clear(); for (const [key, item] of changed) original.set(key, item); }
    else if (original instanceof Set) { original.clear(); for (const item of changed) original.add(item); }
    else if (isData(original)) {
      for (const key of Object.keys(original)) delete original[key];
      Object.assign(original, changed);
    }
  }

  const keyOf = (key) => (typeof key === 'symbol' ? (key === Symbol.iterator ? { symbol: 'iterator' } : undefined) : { key });

  function standIn(id, isFunction) {
    const known = standIns.get(id);
    if (known !== undefined) return known;
    const target = isFunction ? function () {} : {};
    const call = (how, args, self) => ask({ do: how, id, self: encode(self), args: args.map((arg) => encode(arg)) }, args);
    const proxy = new Proxy(target, {
      apply: (_, self, args) => call('call', args, idOfStandIn.has(self) ? self : undefined),
      construct: (_, args) => call('new', args, undefined),
      get: (_, key) => (keyOf(key) === undefined ? undefined : ask({ do: 'get', id, ...keyOf(key) })),
      set: (_, key, value) => { ask({ do: 'set', id, ...keyOf(key), value: encode(value) }); return true; },
      has: (_, key) => keyOf(key) !== undefined && ask({ do: 'has', id, ...keyOf(key) }) === true,
      getPrototypeOf: () => ask({ do: 'proto', id }),
    });
    standIns.set(id, proxy);
    idOfStandIn.set(proxy, id);
    return proxy;
  }

  peer.isStandIn = (value) => idOfStandIn.has(value);
  /** The data of a stand-in: its own properties. */
  peer.own = (proxy) => ask({ do: 'own', id: idOfStandIn.get(proxy) });

  function answer(request) {
    if (isTester && request.do !== 'call') throw new Error('only functions that were passed can be called');
    if (request.do === 'name') return { value: encode(peer.lookUp(request.name)) };
    if (request.do === 'defined') return { value: peer.isDefined(request.name) };
    const target = objects.get(request.id);
    const key = request.symbol === 'iterator' ? Symbol.iterator : request.key;
    switch (request.do) {
      case 'get': return { value: key === 'prototype' ? reference(target[key]) : encode(target[key]) };
      case 'set': target[key] = decode(request.value); return { value: null };
      case 'has': return { value: key in target };
      case 'proto': { const proto = Object.getPrototypeOf(target); return { value: proto === null ? null : reference(proto) }; }
      case 'own': return { value: encode(Object.assign({}, target)) };
    }
    const args = request.args.map(decode);
    const value = encode(request.do === 'new' ? new target(...args) : Reflect.apply(target, decode(request.self), args));
    const changed = [];
    args.forEach((arg, place) => {
      if (!isData(arg)) return;
      const after = encode(arg);
      if (stringify(after) !== stringify(request.args[place])) changed.push([place, after]);
    });
    return changed.length > 0 ? { value, changed } : { value };
  }

  peer.serve = (text) => {
    try {
      return stringify(answer(parse(text)));
    } catch (error) {
      let raised;
      try { raised = encode(error); } catch { raised = { E: ['Error', ''] }; }
      return stringify({ raised });
    }
  };
  return peer;
})
`;
