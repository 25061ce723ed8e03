//! The bare responder: reads commands and answers each with the same five integers, which is the
//! cost of the network and the protocol.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// The argument that makes the binary the responder.
pub(crate) const CHILD: &str = "--bare-responder";

const ANSWER: &[u8] = b"*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n";

/// Prints its port, and serves until its input ends: a runtime and a listener per core, as the
/// server has them.
pub(crate) fn run() -> ExitCode {
    // The parent's exit closes it.
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut at = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut workers = Vec::new();
    for _ in 0..cores {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseport(true)?;
            socket.bind(at)?;
            socket.listen(1024)?
        };
        at = listener.local_addr()?;
        workers.push(thread::spawn(move || runtime.block_on(accept(listener))));
    }
    println!("{}", at.port());
    for worker in workers {
        let _ = worker.join();
    }
    Ok(())
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
