//! Web server for examinations from one side: files of zeros, with ranges, whole, or behind a redirect.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

/// Size of the files. Reason: none ends within a test.
const FILE_BYTES: u64 = 1 << 40;

/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Running server; ended when dropped.
pub struct RangeServer {
    pub addr: SocketAddr,
    connections: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    accepts: Option<JoinHandle<()>>,
}

impl RangeServer {
    /// Starts a server: `/f` has ranges, `/whole` has none, and `/moved` leads to `/f`.
    pub fn start(listener: TcpListener) -> Self {
        let addr = listener.local_addr().unwrap();
        let (connections, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, over) = (Arc::clone(&connections), Arc::clone(&is_over));
        let accepts = thread::spawn(move || {
            // Connections of handshakes are reset, and an error of one is no end.
            while let Ok((stream, _)) = accept(&listener) {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                counted.fetch_add(1, Ordering::Relaxed);
                // Ends with its connection.
                thread::spawn(move || while answer(&stream).is_ok() {});
            }
        });
        Self { addr, connections, is_over, accepts: Some(accepts) }
    }

    /// Returns the URL of a file.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.addr)
    }

    /// Returns the number of connections so far.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Ends the server. It must be called on its host.
    pub fn stop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.addr);
        if let Some(accepts) = self.accepts.take() {
            accepts.join().unwrap();
        }
    }
}

impl Drop for RangeServer {
    fn drop(&mut self) {
        if self.accepts.is_some() {
            self.stop();
        }
    }
}

/// Accepts the next connection that its client has not reset yet.
fn accept(listener: &TcpListener) -> std::io::Result<(TcpStream, SocketAddr)> {
    loop {
        match listener.accept() {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            accepted => return accepted,
        }
    }
}

/// Answers one request.
fn answer(mut stream: &TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < HEAD_BYTES_MAX {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    if head.starts_with("get /moved ") {
        return stream.write_all(b"HTTP/1.1 302 Found\r\nLocation: /f\r\nContent-Length: 0\r\n\r\n");
    }
    let range = head.split("range: bytes=").nth(1).and_then(|text| text.split("\r\n").next()?.split_once('-'));
    let (start, end) = match range.filter(|_| !head.starts_with("get /whole ")) {
        None => {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {FILE_BYTES}\r\n\r\n")?;
            (0, FILE_BYTES)
        }
        Some((start, last)) => {
            let start: u64 = start.parse().unwrap();
            let end = last.parse().map_or(FILE_BYTES, |last: u64| last + 1);
            let length = end - start;
            let content = format!("Content-Range: bytes {start}-{}/{FILE_BYTES}\r\nContent-Length: {length}", end - 1);
            write!(stream, "HTTP/1.1 206 Partial Content\r\n{content}\r\n\r\n")?;
            (start, end)
        }
    };
    let zeros = vec![0; 64 << 10];
    let mut left = end - start;
    while left > 0 {
        let count = left.min(zeros.len() as u64) as usize;
        if let Err(error) = stream.write_all(&zeros[..count]) {
            // The client has what it wants.
            let _ = stream.shutdown(Shutdown::Both);
            return Err(error);
        }
        left -= count as u64;
    }
    Ok(())
}
