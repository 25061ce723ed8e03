//! WebSocket and other upgrades; 100 Continue; request trailers.

use crate::gateway;
use crate::service::{echo, head, service};
use futures_util::{SinkExt, StreamExt};
use std::io::{BufReader, Read, Write};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{accept_async, client_async};

#[test]
fn websockets_go_through_both_ways() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut socket = accept_async(stream).await.unwrap();
                    while let Some(Ok(message)) = socket.next().await {
                        if message.is_text() || message.is_binary() {
                            socket.send(message).await.unwrap();
                        }
                    }
                });
            }
        });
        let server = gateway(
            &[upstream],
            "keep_alive = \"200ms\"\nidle_timeout = \"200ms\"\n",
        );
        let stream = TcpStream::connect(server.address).await.unwrap();
        let (mut socket, answer) = client_async(format!("ws://{}/chat", server.address), stream)
            .await
            .unwrap();
        assert_eq!(answer.status(), 101);
        let large = "x".repeat(1 << 20);
        for text in ["hello", "\r\n\r\n\0 nothing is HTTP here", &large] {
            socket.send(Message::text(text)).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), Message::text(text));
        }
        // Request timeouts do not apply to tunnels.
        tokio::time::sleep(std::time::Duration::from_millis(600)).await;
        socket.send(Message::text("still here")).await.unwrap();
        assert_eq!(
            socket.next().await.unwrap().unwrap(),
            Message::text("still here")
        );
        socket.close(None).await.unwrap();
        assert!(matches!(socket.next().await, Some(Ok(Message::Close(_)))));
    });
}

#[test]
fn any_protocol_is_tunneled_and_a_silent_tunnel_is_closed() {
    let upstream = service(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let head = head(&mut reader).unwrap();
        assert!(
            head.contains("upgrade: echo\r\n") && head.contains("connection: upgrade\r\n"),
            "{head}"
        );
        let switch =
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello";
        stream.write_all(switch.as_bytes()).unwrap();
        let mut buffer = [0; 1024];
        while let Ok(read @ 1..) = reader.read(&mut buffer) {
            stream.write_all(&buffer[..read]).unwrap();
        }
    });
    let server = gateway(&[upstream], "upgrade_timeout = \"300ms\"\n");
    let mut connection = server.connect();
    connection.write("GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    assert!(connection.head().starts_with("HTTP/1.1 101 "));
    connection.write("\n\n\0");
    assert_eq!(connection.rest(), "hello\n\n\0");
}

/// A client that has disconnected does not leave a tunnel behind.
#[test]
fn a_client_that_leaves_before_the_switch_cancels_its_request() {
    let (came, comes) = mpsc::channel();
    let upstream = service(move |stream| {
        let mut reader = BufReader::new(stream);
        head(&mut reader).unwrap();
        came.send("asked").unwrap();
        // A connection that is cut off may end with a reset.
        let _ = reader.read_to_end(&mut Vec::new());
        came.send("gone").unwrap();
    });
    let server = gateway(
        &[upstream],
        "idle_timeout = \"1h\"\ntotal_timeout = \"1h\"\n",
    );
    let mut connection = server.connect();
    connection.write("GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    assert_eq!(comes.recv().unwrap(), "asked");
    drop(connection);
    assert_eq!(comes.recv_timeout(Duration::from_secs(60)).unwrap(), "gone");
}

#[test]
fn early_bytes_belong_to_the_next_protocol() {
    let ((came, comes), (release, released)) = (mpsc::channel(), mpsc::channel());
    let released = Arc::new(Mutex::new(released));
    let upstream = service(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(head) = head(&mut reader) {
            let switches = head.starts_with("get /switch ");
            if head.contains("upgrade: echo\r\n") {
                came.send(()).unwrap();
                released.lock().unwrap().recv().unwrap();
            }
            let answer = if switches {
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
            } else {
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno"
            };
            stream.write_all(answer.as_bytes()).unwrap();
            if switches {
                let mut early = [0; 7];
                reader.read_exact(&mut early).unwrap();
                stream.write_all(&early).unwrap();
                return;
            }
        }
    });
    let server = gateway(&[upstream], "");
    let ask = |path: &str, early: &str| {
        let mut connection = server.connect();
        connection.write(&format!(
            "GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
        ));
        comes.recv().unwrap();
        connection.write(early);
        release.send(()).unwrap();
        connection
    };
    let mut switched = ask("switch", "early\n\0");
    assert!(switched.head().starts_with("HTTP/1.1 101 "));
    assert_eq!(switched.rest(), "early\n\0");

    let mut stays = ask("stay", "GET /next HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(
        [stays.answer().status(), stays.answer().status()],
        [200, 200]
    );

    let mut rejected = ask("stay", "early\n\0");
    assert_eq!(
        [rejected.answer().status(), rejected.answer().status()],
        [200, 400]
    );
}

#[test]
fn continue_is_sent_only_for_allowed_requests() {
    let (upstream, _requests) = echo();
    let server = gateway(&[upstream], "[[policy]]\nname = \"all\"\nlimit = \"1/d\"\n");
    let head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    let mut connection = server.connect();
    connection.write(head);
    assert_eq!(connection.head(), "HTTP/1.1 100 Continue\r\n\r\n");
    connection.write("hello");
    assert!(connection.answer().body.ends_with("hello"));
    let mut connection = server.connect();
    connection.write(head);
    assert_eq!(connection.answer().status(), 429);
}

#[test]
fn request_trailers_are_forwarded() {
    let (upstream, requests) = echo();
    let server = gateway(&[upstream], "");
    let mut connection = server.connect();
    connection.write("POST / HTTP/1.1\r\nHost: x\r\nTrailer: x-sum\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 7\r\n\r\n");
    assert_eq!(connection.answer().status(), 200);
    let seen = requests.recv().unwrap();
    assert!(seen.ends_with("okx-sum: 7\r\n"), "{seen}");
    assert!(
        seen.contains("via: 1.1 ratekeeper\r\n")
            && seen.contains("forwarded: for=127.0.0.1;proto=http;host=x\r\n"),
        "{seen}"
    );
}
