//! What systemd is told, on a socket as it makes them.

use crate::{Place, Started, serve};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

fn heard(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 4096];
    let read = socket.recv(&mut buffer).unwrap();
    String::from_utf8(buffer[..read].to_vec()).unwrap()
}

/// The next that is no sign of life.
fn news(socket: &UnixDatagram) -> String {
    loop {
        let text = heard(socket);
        if text != "WATCHDOG=1" {
            return text;
        }
    }
}

#[test]
fn systemd_is_told_everything_on_either_kind_of_socket() {
    let place = Place::new("notify");
    let path = place.file("notify.sock");
    let hidden = format!("ratekeeper-{}-notify", std::process::id());
    let sockets = [
        (path.clone(), UnixDatagram::bind(&path).unwrap()),
        (
            format!("@{hidden}"),
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&hidden).unwrap()).unwrap(),
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
        let server = Started::run(command);
        let ready = heard(&socket);
        let at = server.behind("HTTP on http://");
        assert!(
            ready.starts_with("READY=1\nSTATUS=ratekeeper ")
                && ready.ends_with(&format!("http://{at}")),
            "{ready}"
        );
        assert_eq!(
            [heard(&socket), heard(&socket)],
            ["WATCHDOG=1", "WATCHDOG=1"]
        );
        server.signal("HUP");
        let reloading = news(&socket);
        let since = reloading
            .strip_prefix("RELOADING=1\nMONOTONIC_USEC=")
            .unwrap_or_else(|| panic!("{reloading}"));
        assert!(since.parse::<u64>().unwrap() > 0);
        assert_eq!(news(&socket), ready);
        server.signal("TERM");
        assert_eq!(
            news(&socket),
            "STOPPING=1\nSTATUS=requests in flight are served first"
        );
        assert!(server.ended().0.success());
    }
}

#[test]
fn a_socket_that_is_not_there_and_a_watchdog_of_another_stop_nothing() {
    let place = Place::new("nobody");
    for name in [place.file("nobody.sock"), "@".to_owned() + &"x".repeat(300)] {
        let mut command =
            serve("[server]\nhttp = \"127.0.0.1:0\"\nresp = \"off\"\nadmin = \"off\"\n");
        command
            .env("NOTIFY_SOCKET", &name)
            .env("WATCHDOG_USEC", "1000")
            .env("WATCHDOG_PID", "1");
        let server = Started::run(command);
        server.signal("TERM");
        assert!(server.ended().0.success());
    }
}
