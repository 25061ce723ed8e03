//! `ratekeeper proxy` as a child process; killed when dropped.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    process: Child,
    config: PathBuf,
}

impl Gateway {
    /// Starts a gateway in front of a service, with one policy for all requests.
    pub(crate) fn start(upstream: SocketAddr, policy: &str) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let binary = own.with_file_name("ratekeeper");
        let config =
            std::env::temp_dir().join(format!("ratekeeper-overload-{}.toml", std::process::id()));
        let text = format!(
            "[gateway]\nupstreams = [\"http://{upstream}\"]\n\n[[policy]]\nname = \"all\"\n{policy}\n"
        );
        fs::write(&config, text).map_err(|error| error.to_string())?;
        let mut command = Command::new(&binary);
        command
            .args(["proxy", "--listen", "127.0.0.1:0", "--config"])
            .arg(&config);
        command
            .env("RATEKEEPER_SERVER__ADMIN", "off")
            .env("RUST_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let process = command
            .spawn()
            .map_err(|error| format!("{} could not be started: {error}", binary.display()))?;
        let mut gateway = Self {
            address: upstream,
            process,
            config,
        };
        let stdout = gateway.process.stdout.take();
        for line in stdout
            .into_iter()
            .flat_map(|stdout| BufReader::new(stdout).lines())
            .map_while(Result::ok)
        {
            if let Some(address) = line
                .split_once(": gateway listening on http://")
                .and_then(|(_, address)| address.parse().ok())
            {
                gateway.address = address;
                return Ok(gateway);
            }
        }
        Err("ratekeeper proxy did not start".into())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_file(&self.config);
    }
}
