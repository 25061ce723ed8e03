// An upstream for tests, with Node's own http and http2: it answers each request in the shape that the query asks for (see
// ../README.md). It ends when its input does.
'use strict';
const http = require('node:http');
const http2 = require('node:http2');
const { createHash } = require('node:crypto');
const { once } = require('node:events');
const { setTimeout: sleep } = require('node:timers/promises');

// The byte of every body at an offset: a period of 64,256 bytes, so that chunks which are lost, doubled or exchanged are seen.
function content(offset, length) {
  const bytes = Buffer.allocUnsafe(length);
  for (let index = 0; index < length; index++) {
    const at = offset + index;
    bytes[index] = (at % 251) + Math.floor(at / 251);
  }
  return bytes;
}

// Gates that hold responses back until the client asks for the next chunk: the responses that wait at them.
const gates = new Map();

function passGate(name) {
  return new Promise((resolve) => {
    const gate = gates.get(name) ?? { waiting: [], ahead: [] };
    gates.set(name, gate);
    const opens = gate.ahead.shift();
    if (opens) opens();
    opens ? resolve() : gate.waiting.push(resolve);
  });
}

function openGate(name) {
  return new Promise((resolve) => {
    const gate = gates.get(name) ?? { waiting: [], ahead: [] };
    gates.set(name, gate);
    const passes = gate.waiting.shift();
    if (passes) passes();
    passes ? resolve() : gate.ahead.push(resolve);
  });
}

// False if the client has left.
function write(response, bytes) {
  return new Promise((resolve) => {
    if (response.write(bytes)) return resolve(true);
    const done = () => {
      response.off('drain', done).off('close', done);
      resolve(!response.destroyed && !response.stream?.destroyed);
    };
    response.on('drain', done).on('close', done);
  });
}

// The fields of a query: see ../README.md.
const FIELDS = new Set([
  'framing', 'size', 'chunk', 'flush', 'pause', 'events', 'gate', 'trailers', 'status', 'etag', 'head', 'headers', 'hints',
  'abort', 'take', 'read_pause',
]);

async function shape(request, response, q) {
  const unknown = [...q.keys()].find((name) => !FIELDS.has(name));
  if (unknown) {
    response.statusCode = 400;
    response.end(`unknown field ${unknown}\n`);
    return;
  }
  const number = (name, otherwise) => (q.has(name) ? Number(q.get(name)) : otherwise);
  const isHttp2 = request.httpVersionMajor === 2;
  if (q.get('take') === 'echo') {
    response.writeHead(200);
    response.flushHeaders?.();
    for await (const part of request) {
      if (!(await write(response, part))) return;
    }
    response.end();
    return;
  }
  if (q.get('take') !== 'none') {
    const hash = createHash('sha256');
    let length = 0;
    for await (const part of request) {
      hash.update(part);
      length += part.length;
      if (q.has('read_pause')) await sleep(number('read_pause'));
    }
    response.setHeader('X-Received-Length', length);
    response.setHeader('X-Received-Hash', hash.digest('hex'));
    if (request.trailers['x-sum']) response.setHeader('X-Received-Trailer', request.trailers['x-sum']);
  }
  for (let hint = 0; hint < number('hints', 0); hint++) {
    response.writeEarlyHints({ link: `</${hint}.css>; rel=preload` });
  }
  const head = number('head', 0);
  const headers = number('headers', 1);
  for (let pad = 0; head > 0 && pad < headers; pad++) {
    response.setHeader(`X-Pad-${pad}`, 'p'.repeat(Math.floor(head / headers)));
  }
  const [size, events] = [number('size', 0), number('events', 0)];
  const chunk = number('chunk', 0) || Math.max(size, 1);
  response.setHeader('Content-Type', events > 0 ? 'text/event-stream' : 'application/octet-stream');
  if (q.get('framing') === 'sized') response.setHeader('Content-Length', size);
  if (q.get('framing') === 'close' && !isHttp2) response.removeHeader('Transfer-Encoding');
  const trailers = q.has('trailers') && request.method !== 'HEAD';
  if (trailers) response.setHeader('Trailer', 'X-Sum');
  if (q.has('etag')) response.setHeader('ETag', `"${q.get('etag')}"`);
  response.writeHead(number('status', 200));
  if (q.get('framing') !== 'sized' || q.has('gate')) response.flushHeaders?.();
  const hash = createHash('sha256');
  const send = async (bytes) => {
    if (q.has('gate')) await passGate(q.get('gate'));
    hash.update(bytes);
    if (!(await write(response, bytes))) return false;
    // Without a pause all chunks are written in one turn of the event loop, and are there at once.
    if (q.has('pause')) await sleep(number('pause'));
    return true;
  };
  for (let event = 0; event < events; event++) {
    if (!(await send(Buffer.from(`id: ${event}\ndata: event ${event}\n\n`)))) return;
  }
  for (let offset = 0; offset < size; offset += chunk) {
    if (q.has('abort') && offset >= number('abort')) {
      isHttp2 ? response.stream.close(http2.constants.NGHTTP2_INTERNAL_ERROR) : response.socket.destroy();
      return;
    }
    if (!(await send(content(offset, Math.min(chunk, size - offset))))) return;
  }
  if (trailers) response.addTrailers({ 'X-Sum': hash.digest('hex') });
  response.end();
}

function serve(request, response) {
  const url = new URL(request.url, 'http://localhost');
  // Clients leave.
  request.on('error', () => {});
  response.on('error', () => {});
  const served = url.pathname === '/next'
    ? openGate(url.searchParams.get('gate')).then(() => response.end())
    : shape(request, response, url.searchParams);
  served.catch(() => (response.stream ?? response).destroy());
}

async function main() {
  const plain = http.createServer(serve).listen(0, '127.0.0.1');
  // Room for long heads, and for bodies that are written at once: else it refuses other streams meanwhile.
  const prior = http2.createServer({ maxSendHeaderBlockLength: 1 << 20, maxSessionMemory: 1000 }, serve).listen(0, '127.0.0.1');
  await Promise.all([once(plain, 'listening'), once(prior, 'listening')]);
  console.log([plain, prior].map((server) => `127.0.0.1:${server.address().port}`).join(' '));
  process.stdin.on('end', () => process.exit(0)).resume();
}

main();
