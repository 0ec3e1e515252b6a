// Runs the NDT7 client of Measurement Lab with a server: node run.cjs HOST:PORT ws|wss. Prints the last measurements of
// both tests as JSON. Replaces what the client takes from a browser: workers, and a WebSocket that accepts any
// certificate.
'use strict';

const fs = require('fs');
const path = require('path');
const vm = require('vm');
const WebSocket = require('ws');
const ndt7 = require('@m-lab/ndt7');

const directory = path.dirname(require.resolve('@m-lab/ndt7'));

class TrustingSocket extends WebSocket {
  constructor(url, protocol) {
    super(url, protocol, {rejectUnauthorized: false});
  }
}

global.Worker = class {
  constructor(file) {
    this.scope = {};
    const postMessage = (data) => setImmediate(() => this.isOver || this.onmessage({data}));
    const globals = {self: this.scope, WebSocket: TrustingSocket, postMessage, performance, setTimeout, Uint8Array};
    vm.runInNewContext(fs.readFileSync(path.join(directory, file), 'utf8'), globals);
  }

  postMessage(data) {
    this.scope.onmessage({data});
  }

  terminate() {
    this.isOver = true;
  }
};

const results = {errors: []};
const [server, protocol] = process.argv.slice(2);
ndt7.test({server, protocol, mlabDataPolicyInapplicable: true}, {
  error: (error) => results.errors.push(String(error)),
  downloadComplete: (last) => results.download = last,
  uploadComplete: (last) => results.upload = last,
}).then((code) => {
  console.log(JSON.stringify({code, ...results}));
  process.exit(code);
});
