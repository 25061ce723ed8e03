//! Unix socket listeners: one file and one accept queue, shared by the workers.

use socket2::{Domain, SockAddr, Socket, Type};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::BACKLOG;

/// The file mode: the user that ratekeeper runs as, and its group, may connect.
const MODE: u32 = 0o660;

/// A listener and its socket file, which is removed with the last listener that shares it.
pub(crate) struct BoundUnixSocket {
    listener: Option<UnixListener>,
    file: Arc<SocketFile>,
}

impl BoundUnixSocket {
    pub(super) fn path(&self) -> &Path {
        &self.file.path
    }

    /// Registers the socket with the runtime that this is called in.
    pub(super) fn listener(mut self) -> io::Result<(tokio::net::UnixListener, Self)> {
        let listener = self.listener.take().ok_or(io::ErrorKind::NotConnected)?;
        Ok((tokio::net::UnixListener::from_std(listener)?, self))
    }

    /// Removes the file: no new connection can come, and those in the queue are still accepted.
    pub(super) fn close(&self) {
        self.file.remove();
    }
}

/// The file of a socket, removed when this is dropped.
struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl SocketFile {
    /// Only removes our own file: another process may have replaced it.
    fn remove(&self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|there| there.ino() == self.inode) {
            // A file that cannot be removed is removed by the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Binds `count` listeners to the socket at this path. A file that a dead process left is removed;
/// a live one is in use.
pub(super) fn bind(path: &Path, count: usize) -> io::Result<Vec<BoundUnixSocket>> {
    remove_stale(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = Arc::new(SocketFile {
        path: path.to_owned(),
        inode: fs::symlink_metadata(path)?.ino(),
    });
    // The socket does not listen yet, so no other user can connect before.
    fs::set_permissions(path, Permissions::from_mode(MODE))?;
    socket.listen(BACKLOG)?;
    let first = UnixListener::from(socket);
    let mut sockets = Vec::with_capacity(count);
    for _ in 1..count {
        sockets.push(BoundUnixSocket {
            listener: Some(first.try_clone()?),
            file: Arc::clone(&file),
        });
    }
    sockets.push(BoundUnixSocket {
        listener: Some(first),
        file,
    });
    Ok(sockets)
}

fn remove_stale(path: &Path) -> io::Result<()> {
    let there = match fs::symlink_metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !there.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the file is not a socket",
        ));
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A live socket whose queue is full must not block us.
    probe.set_nonblocking(true)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}
