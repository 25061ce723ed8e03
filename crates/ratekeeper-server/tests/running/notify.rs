//! Notifications to systemd, on the kinds of sockets it creates.

use crate::{RunningServer, TempDir, serve};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

fn receive(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 4096];
    let read = socket.recv(&mut buffer).unwrap();
    String::from_utf8(buffer[..read].to_vec()).unwrap()
}

/// The next message other than the watchdog's.
fn receive_status(socket: &UnixDatagram) -> String {
    loop {
        let text = receive(socket);
        if text != "WATCHDOG=1" {
            return text;
        }
    }
}

#[test]
fn systemd_is_notified_on_both_kinds_of_socket() {
    let dir = TempDir::new("notify");
    let path = dir.file("notify.sock");
    let abstract_name = format!("ratekeeper-{}-notify", std::process::id());
    let sockets = [
        (path.clone(), UnixDatagram::bind(&path).unwrap()),
        (
            format!("@{abstract_name}"),
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&abstract_name).unwrap())
                .unwrap(),
        ),
    ];
    for (name, socket) in sockets {
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut command =
            serve("[server]\nhttp = \"127.0.0.1:0\"\nresp = \"off\"\nadmin = \"off\"\n");
        command
            .env("NOTIFY_SOCKET", &name)
            .env("WATCHDOG_USEC", "200000");
        let server = RunningServer::run(command);
        let ready = receive(&socket);
        let at = server.text_after("HTTP listening on http://");
        assert!(
            ready.starts_with("READY=1\nSTATUS=ratekeeper ")
                && ready.ends_with(&format!("http://{at}")),
            "{ready}"
        );
        assert_eq!(
            [receive(&socket), receive(&socket)],
            ["WATCHDOG=1", "WATCHDOG=1"]
        );
        server.signal("HUP");
        let reloading = receive_status(&socket);
        let since = reloading
            .strip_prefix("RELOADING=1\nMONOTONIC_USEC=")
            .unwrap_or_else(|| panic!("{reloading}"));
        assert!(since.parse::<u64>().unwrap() > 0);
        assert_eq!(receive_status(&socket), ready);
        server.signal("TERM");
        assert_eq!(
            receive_status(&socket),
            "STOPPING=1\nSTATUS=finishing requests in flight"
        );
        assert!(server.ended().0.success());
    }
}

#[test]
fn a_missing_socket_and_a_watchdog_of_another_process_are_ignored() {
    let dir = TempDir::new("missing");
    for name in [dir.file("missing.sock"), "@".to_owned() + &"x".repeat(300)] {
        let mut command =
            serve("[server]\nhttp = \"127.0.0.1:0\"\nresp = \"off\"\nadmin = \"off\"\n");
        command
            .env("NOTIFY_SOCKET", &name)
            .env("WATCHDOG_USEC", "1000")
            .env("WATCHDOG_PID", "1");
        let server = RunningServer::run(command);
        server.signal("TERM");
        assert!(server.ended().0.success());
    }
}
