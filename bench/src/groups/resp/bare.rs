//! The bare responder: reads commands and answers each with the same five integers, which is the
//! cost of the network and the protocol.

use crate::bare_server;
use std::io;
use std::process::ExitCode;
use tokio::net::{TcpListener, TcpStream};

/// The argument that makes the binary the responder.
pub(crate) const CHILD: &str = "--bare-responder";

const ANSWER: &[u8] = b"*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n";

/// Runs the child.
pub(crate) fn run() -> ExitCode {
    bare_server::run(accept)
}

async fn accept(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        // A closed connection needs no more handling.
        tokio::spawn(async move { drop(connection(stream).await) });
    }
}

async fn connection(stream: TcpStream) -> io::Result<()> {
    let (mut input, mut filled, mut out) = (vec![0; 64 * 1024], 0, Vec::with_capacity(64 * 1024));
    loop {
        stream.readable().await?;
        match stream.try_read(&mut input[filled..]) {
            Ok(0) => return Ok(()),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        let mut at = 0;
        while let Some(length) = command(&input[at..filled]) {
            out.extend_from_slice(ANSWER);
            at += length;
        }
        input.copy_within(at..filled, 0);
        filled -= at;
        let mut sent = 0;
        while sent < out.len() {
            match stream.try_write(&out[sent..]) {
                Ok(more) => sent += more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    stream.writable().await?;
                }
                Err(error) => return Err(error),
            }
        }
        out.clear();
    }
}

/// Returns how many bytes the first command has; `None` if it is incomplete.
fn command(input: &[u8]) -> Option<usize> {
    let (mut left, mut at) = number(input, 0)?;
    while left > 0 {
        let (length, start) = number(input, at)?;
        at = start + length + 2;
        left -= 1;
    }
    (at <= input.len()).then_some(at)
}

/// Returns the number in a line such as `$5`, and where the next line begins.
fn number(input: &[u8], at: usize) -> Option<(usize, usize)> {
    let mut number = 0;
    for (offset, byte) in input.get(at + 1..)?.iter().enumerate() {
        match byte {
            b'0'..=b'9' => number = number * 10 + usize::from(byte - b'0'),
            _ => return Some((number, at + offset + 3)),
        }
    }
    None
}
