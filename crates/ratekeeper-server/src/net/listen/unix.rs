//! Unix sockets: one file, one queue, a listener a worker on it.

use socket2::{Domain, SockAddr, Socket, Type};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::BACKLOG;

/// Who may connect: the user that ratekeeper runs as, and its group.
const MODE: u32 = 0o660;

/// A listener and the file it is reached by, which is removed with the last of those that share it.
pub(crate) struct UnixSocketPath {
    listener: Option<UnixListener>,
    file: Arc<SocketFile>,
}

impl UnixSocketPath {
    pub(super) fn path(&self) -> &Path {
        &self.file.path
    }

    /// In the runtime that this is called in.
    pub(super) fn listener(mut self) -> io::Result<(tokio::net::UnixListener, Self)> {
        let listener = self.listener.take().ok_or(io::ErrorKind::NotConnected)?;
        Ok((tokio::net::UnixListener::from_std(listener)?, self))
    }

    /// Nobody finds the way any more; who has come is still accepted.
    pub(super) fn close(&self) {
        self.file.remove();
    }
}

/// The file that a socket is reached by, removed when this is dropped.
struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl SocketFile {
    /// Only if it is still ours: somebody may have taken its place.
    fn remove(&self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|there| there.ino() == self.inode) {
            // Who cannot remove it leaves a dead one, which the next start removes.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// `many` listeners on the socket of that path. One that a dead process left is removed; one that
/// is alive is in use.
pub(super) fn bind(path: &Path, many: usize) -> io::Result<Vec<UnixSocketPath>> {
    make_room(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = Arc::new(SocketFile {
        path: path.to_owned(),
        inode: fs::symlink_metadata(path)?.ino(),
    });
    // Nobody can connect before it listens: there is no moment at which others may.
    fs::set_permissions(path, Permissions::from_mode(MODE))?;
    socket.listen(BACKLOG)?;
    let first = UnixListener::from(socket);
    let mut doors = Vec::with_capacity(many);
    for _ in 1..many {
        doors.push(UnixSocketPath {
            listener: Some(first.try_clone()?),
            file: Arc::clone(&file),
        });
    }
    doors.push(UnixSocketPath {
        listener: Some(first),
        file,
    });
    Ok(doors)
}

fn make_room(path: &Path) -> io::Result<()> {
    let there = match fs::symlink_metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !there.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "there is a file that is not a socket",
        ));
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // One whose queue is full is alive, and must not keep us waiting.
    probe.set_nonblocking(true)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}
