//! Bare services beside the server: a runtime and a listener per core, as the server has them.

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::thread;
use tokio::net::{TcpListener, TcpSocket};

/// Runs a child: prints its port, and serves until its input ends.
pub(crate) fn run<F: Future>(serve: impl Fn(TcpListener) -> F + Copy + Send + 'static) -> ExitCode {
    // The parent's exit closes it.
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    match on_each_core(serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn on_each_core<F: Future>(
    serve: impl Fn(TcpListener) -> F + Copy + Send + 'static,
) -> io::Result<()> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut workers = Vec::new();
    for _ in 0..cores {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseport(true)?;
            socket.bind(address)?;
            socket.listen(1024)?
        };
        address = listener.local_addr()?;
        workers.push(thread::spawn(move || {
            runtime.block_on(serve(listener));
        }));
    }
    println!("{}", address.port());
    for worker in workers {
        let _ = worker.join();
    }
    Ok(())
}
