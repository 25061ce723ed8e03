//! The service behind a proxy: it answers with the request as it got it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Method, target, length of the body and sum of its bytes, as the service reports them.
pub(crate) fn seen(method: &str, target: &str, body: &[u8]) -> String {
    let sum: u64 = body.iter().copied().map(u64::from).sum();
    format!("{method} {target} {} {sum}", body.len())
}

/// Starts the service for as long as the test runs.
pub(crate) fn app() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            // A proxy may close a connection at any time.
            std::thread::spawn(|| serve(stream));
        }
    });
    address
}

/// Answers one request after the other; `None` when the connection ends.
fn serve(mut stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let first = line(&mut reader)?;
        let (mut length, mut chunked) = (0, false);
        loop {
            let line = line(&mut reader)?.to_ascii_lowercase();
            let Some((name, value)) = line.split_once(':') else {
                break;
            };
            match (name, value.trim()) {
                ("content-length", value) => length = value.parse().ok()?,
                ("transfer-encoding", value) => chunked = value == "chunked",
                ("expect", _) => stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?,
                _ => {}
            }
        }
        let mut body = Vec::new();
        if chunked {
            loop {
                let size = usize::from_str_radix(line(&mut reader)?.split(';').next()?, 16).ok()?;
                read(&mut reader, size, &mut body)?;
                line(&mut reader)?;
                if size == 0 {
                    break;
                }
            }
        } else {
            read(&mut reader, length, &mut body)?;
        }
        let mut words = first.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        let answer = seen(method, target, &body);
        let shown = if method == "HEAD" { "" } else { &*answer };
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nX-Seen: {answer}\r\nContent-Length: {}\r\n\r\n{shown}",
            answer.len()
        )
        .ok()?;
    }
}

/// A line without its end; a header may have any bytes.
fn line(reader: &mut impl BufRead) -> Option<String> {
    let mut line = Vec::new();
    reader
        .read_until(b'\n', &mut line)
        .ok()
        .filter(|length| *length > 0)?;
    Some(String::from_utf8_lossy(line.trim_ascii_end()).into_owned())
}

fn read(reader: &mut impl Read, length: usize, body: &mut Vec<u8>) -> Option<()> {
    let read = reader.take(length as u64).read_to_end(body).ok()?;
    (read == length).then_some(())
}
