//! Mock upstreams for the gateway.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// An upstream that serves each connection with this function.
pub(crate) fn service(serve: impl Fn(TcpStream) + Send + Clone + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// The next head, in lower case, or `None` at the end of the connection.
pub(crate) fn head(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return None;
        }
    }
    Some(head.to_ascii_lowercase())
}

/// The body that follows a head, chunked or not, or `None` if it is cut off.
pub(crate) fn body(reader: &mut BufReader<TcpStream>, head: &str) -> Option<String> {
    let mut body = Vec::new();
    if head.contains("transfer-encoding: chunked") {
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
            let size = usize::from_str_radix(line.trim(), 16).ok()?;
            if size == 0 {
                break;
            }
            let before = body.len();
            body.resize(before + size + 2, 0);
            reader.read_exact(&mut body[before..]).ok()?;
            body.truncate(before + size);
        }
        // Trailers count as part of the body here.
        let mut line = String::new();
        while line != "\r\n" {
            body.extend_from_slice(line.as_bytes());
            line.clear();
            reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        }
    } else {
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())
            .unwrap_or(0);
        body.resize(length, 0);
        reader.read_exact(&mut body).ok()?;
    }
    Some(String::from_utf8_lossy(&body).into_owned())
}

/// An upstream whose responses never end. It reports how many bytes it sent of one when the gateway
/// takes no more.
#[allow(dead_code, reason = "not every test file uses it")]
pub(crate) fn endless() -> (SocketAddr, Receiver<usize>) {
    let (sender, ended) = channel();
    let address = service(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        if head(&mut reader).is_some() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            let chunk = [&b"10000\r\n"[..], &[b'a'; 0x10000], b"\r\n"].concat();
            let mut sent = 0;
            while stream.write_all(&chunk).is_ok() {
                sent += chunk.len();
            }
            let _ = sender.send(sent);
        }
    });
    (address, ended)
}

/// Answers every request with its own head and body, and reports each.
pub(crate) fn echo() -> (SocketAddr, Receiver<String>) {
    named_echo("")
}

/// The same with a name before the response body.
pub(crate) fn named_echo(name: &'static str) -> (SocketAddr, Receiver<String>) {
    let (sender, requests): (Sender<String>, _) = channel();
    let address = service(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(head) = head(&mut reader) {
            let Some(body) = body(&mut reader, &head) else {
                return;
            };
            let text = format!("{name}{head}{body}");
            let _ = sender.send(text.clone());
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}",
                text.len()
            );
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
    (address, requests)
}
