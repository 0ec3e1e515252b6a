//! Relay in front of a storage, which holds back the bytes of a large request until a test opens it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use crate::servers::Storage;

/// Bytes of a connection that pass before the relay is open. Reason: more than a storage buffers before it writes, and
/// less than a large file with all buffers between an agent and its storage.
const PASS_BYTES: usize = 8 << 20;

/// Relay in front of a storage.
pub struct Relay {
    port: u16,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn wait(&self) {
        let is_open = self.is_open.lock().unwrap();
        drop(self.opened.wait_while(is_open, |is_open| !*is_open).unwrap());
    }
}

impl Relay {
    /// Starts it.
    pub fn before(storage: &Storage) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (port, gate, to) = (listener.local_addr().unwrap().port(), Arc::<Gate>::default(), storage.port());
        let of_all = Arc::clone(&gate);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // A storage that has ended refuses the connection, and so does the relay.
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let (back_from, back_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                let gate = Arc::clone(&of_all);
                thread::spawn(move || copy(&client, &server, Some(&gate)));
                thread::spawn(move || copy(&back_from, &back_to, None));
            }
        });
        Self { port, gate }
    }

    /// Returns the location of a file of the storage.
    pub fn url(&self, name: &str) -> String {
        format!("http://localhost:{}/{name}", self.port)
    }

    /// Lets all bytes pass from now on.
    pub fn open(&self) {
        *self.gate.is_open.lock().unwrap() = true;
        self.gate.opened.notify_all();
    }
}

/// Copies bytes until one end closes, which closes the other.
fn copy(mut from: &TcpStream, mut to: &TcpStream, gate: Option<&Gate>) {
    let (mut buffer, mut passed) = (vec![0; 64 << 10], 0);
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        passed += length;
        if let Some(gate) = gate.filter(|_| passed > PASS_BYTES) {
            gate.wait();
        }
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    // It may be closed already.
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
