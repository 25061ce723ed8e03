//! A minimal Redis client: one command out, one reply in (RESP2).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The timeout of a command.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// A reply of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A status such as `OK`.
    Simple(String),
    /// An error, its code first, as in `ERR unknown command`.
    Error(String),
    /// A whole number.
    Int(i64),
    /// A value.
    Bulk(Vec<u8>),
    /// No value.
    Nil,
    /// Several replies.
    Array(Vec<Reply>),
}

impl Reply {
    /// The number in an integer reply, or in a value that is written as one.
    pub fn int(&self) -> Option<i64> {
        match self {
            Reply::Int(number) => Some(*number),
            _ => self.text()?.parse().ok(),
        }
    }

    /// The text of a status, an error or a value.
    pub fn text(&self) -> Option<&str> {
        match self {
            Reply::Simple(text) | Reply::Error(text) => Some(text),
            Reply::Bulk(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The replies in an array; empty for anything else.
    pub fn items(&self) -> &[Reply] {
        match self {
            Reply::Array(items) => items,
            _ => &[],
        }
    }

    /// Whether this is an error.
    pub fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_))
    }
}

trait Stream: Read + Write + Send {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))
            .and(self.set_write_timeout(Some(timeout)))
    }
}

impl Stream for UnixStream {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))
            .and(self.set_write_timeout(Some(timeout)))
    }
}

/// One connection to a server.
pub struct Connection(BufReader<Box<dyn Stream>>);

impl Connection {
    /// Connects to a port of this machine.
    pub fn tcp(port: u16) -> io::Result<Self> {
        let stream =
            TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), TIMEOUT)?;
        stream.set_nodelay(true)?;
        Self::on(stream)
    }

    /// Connects to a Unix socket.
    pub fn unix(path: &Path) -> io::Result<Self> {
        Self::on(UnixStream::connect(path)?)
    }

    fn on(stream: impl Stream + 'static) -> io::Result<Self> {
        stream.set_timeout(TIMEOUT)?;
        Ok(Self(BufReader::new(Box::new(stream))))
    }

    /// Sets the timeout of each read or write from now on, instead of [`TIMEOUT`].
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.0.get_ref().set_timeout(timeout)
    }

    /// Sends a command and reads its reply. After an error the connection cannot be used any more.
    pub fn command<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> io::Result<Reply> {
        self.send(arguments)?;
        self.read()
    }

    /// Sends a command without waiting for its reply, which [`read`](Self::read) returns later.
    pub fn send<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> io::Result<()> {
        let mut request = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            let argument = argument.as_ref();
            request.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            request.extend_from_slice(argument);
            request.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&request)
    }

    /// Reads the next reply.
    pub fn read(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| not_resp(&line))?;
        let number = || rest.parse::<i64>().map_err(|_| not_resp(&line));
        Ok(match kind {
            "+" => Reply::Simple(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Int(number()?),
            "$" => match usize::try_from(number()?) {
                Ok(length) => Reply::Bulk(self.bulk(length)?),
                Err(_) => Reply::Nil,
            },
            "*" => match usize::try_from(number()?) {
                Ok(length) => Reply::Array(
                    (0..length)
                        .map(|_| self.read())
                        .collect::<io::Result<_>>()?,
                ),
                Err(_) => Reply::Nil,
            },
            _ => return Err(not_resp(&line)),
        })
    }

    /// Reads one line, without its end.
    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let text = line
            .strip_suffix(b"\r\n")
            .and_then(|line| std::str::from_utf8(line).ok());
        text.map(str::to_owned)
            .ok_or_else(|| not_resp(&String::from_utf8_lossy(&line)))
    }

    fn bulk(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut value = Vec::new();
        let wanted = length as u64 + 2;
        if self.0.by_ref().take(wanted).read_to_end(&mut value)? as u64 != wanted {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        value.truncate(length);
        Ok(value)
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connection")
    }
}

fn not_resp(line: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("`{}` does not begin a reply of Redis", line.escape_debug()),
    )
}
