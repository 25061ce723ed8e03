//! A client that sends any bytes, from any address of this machine.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// Far longer than any proxy waits, so that a test that hangs ends.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The head of a response, and what it says about the request.
#[derive(Debug)]
pub(crate) struct Response {
    head: String,
}

impl Response {
    #[track_caller]
    pub(crate) fn status(&self) -> u16 {
        let status = self
            .head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        status.unwrap_or_else(|| panic!("no response but {:?}", self.head))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .find(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }
}

/// Sends a request and reads until the connection ends; the request has `Connection: close`.
pub(crate) fn send(to: SocketAddr, from: Ipv4Addr, request: &[u8]) -> Response {
    let mut stream = connect(to, from);
    // A server that rejects a request need not read all of it.
    let _ = stream.write_all(request);
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response);
    let text = String::from_utf8_lossy(&response);
    Response {
        head: text.split("\r\n\r\n").next().unwrap_or_default().to_owned(),
    }
}

fn connect(to: SocketAddr, from: Ipv4Addr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        socket.connect(to).await.unwrap()
    });
    let stream = stream.into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}
