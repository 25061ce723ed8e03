//! Three processes with one limit on one Redis: together they allow what one alone would. Then the
//! same with a naive GET and SET, which allows too many.
//!
//!     cargo run --release --example three_nodes [redis://127.0.0.1:6379]
//!
//! Without an address, and without REDIS_URL, it starts a redis-server of its own and stops it at
//! the end.

use ratekeeper::{Ask, Limit, Store, store::LimitHandle, store::OnFailure};
use ratekeeper_redis::RedisStore;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;

const RATE: u64 = 100;
const BURST: u64 = 200;
const NODES: usize = 3;
/// Callers per node, the pause of each between two requests, and the duration of the load.
const CALLERS: usize = 8;
const PAUSE: Duration = Duration::from_millis(2);
const LOAD: Duration = Duration::from_millis(1_200);

/// How a node decides on requests.
#[derive(Clone)]
enum NodeLimit {
    Ratekeeper(RedisStore, LimitHandle),
    GetThenSet(MultiplexedConnection, String),
}

impl NodeLimit {
    async fn open(kind: &str, url: &str, prefix: &str) -> Result<Self, Box<dyn Error>> {
        if kind == "ratekeeper" {
            // Fail closed: this shows what Redis decides, not what a node does without it.
            let store = RedisStore::builder(url)
                .prefix(prefix)
                .timeout(Duration::from_secs(1));
            let store = store.on_failure(OnFailure::Closed).connect().await?;
            let limit = store.limit("everyone", Limit::per_second(RATE).burst(BURST))?;
            return Ok(Self::Ratekeeper(store, limit));
        }
        let connection = redis::Client::open(url)?
            .get_multiplexed_async_connection()
            .await?;
        Ok(Self::GetThenSet(connection, format!("{prefix}:naive")))
    }

    async fn is_allowed(&self) -> Result<bool, Box<dyn Error + Send + Sync>> {
        match self {
            Self::Ratekeeper(store, limit) => {
                Ok(store.decide(&[Ask::new(limit, "")]).await.is_allowed())
            }
            Self::GetThenSet(connection, key) => get_then_set(connection.clone(), key).await,
        }
    }
}

/// The same token bucket, as it is often written: read, compute, write. A node that reads before
/// another has written sees tokens that are used already.
async fn get_then_set(
    mut redis: MultiplexedConnection,
    key: &str,
) -> Result<bool, Box<dyn Error + Send + Sync>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    let read: Option<String> = redis.get(key).await?;
    let (tokens, last) = match read.as_deref().and_then(|state| state.split_once(' ')) {
        Some((tokens, last)) => (tokens.parse()?, last.parse()?),
        None => (BURST as f64, now),
    };
    let tokens = f64::min(
        BURST as f64,
        tokens + RATE as f64 * f64::max(0.0, now - last),
    );
    if tokens < 1.0 {
        return Ok(false);
    }
    let _: () = redis
        .set_ex(key, format!("{} {now}", tokens - 1.0), 60)
        .await?;
    Ok(true)
}

/// One node: prints `ready`, waits for a line, sends requests, and prints how many it sent and how
/// many were allowed.
#[tokio::main(flavor = "current_thread")]
async fn node(kind: &str, url: &str, prefix: &str) -> Result<(), Box<dyn Error>> {
    let limit = NodeLimit::open(kind, url, prefix).await?;
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    let end = Instant::now() + LOAD;
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let limit = limit.clone();
        callers.spawn(async move {
            let (mut sent, mut allowed) = (0_u64, 0_u64);
            while Instant::now() < end {
                sent += 1;
                allowed += u64::from(limit.is_allowed().await?);
                tokio::time::sleep(PAUSE).await;
            }
            Ok::<_, Box<dyn Error + Send + Sync>>((sent, allowed))
        });
    }
    let (mut sent, mut allowed) = (0, 0);
    while let Some(caller) = callers.join_next().await {
        let (its_sent, its_allowed) = caller?.map_err(|error| error.to_string())?;
        sent += its_sent;
        allowed += its_allowed;
    }
    println!("{sent} {allowed}");
    Ok(())
}

/// Runs all nodes at once, prints what they did, and returns whether it is within the limit.
fn fleet(title: &str, kind: &str, url: &str, prefix: &str) -> Result<bool, Box<dyn Error>> {
    let mut nodes = Vec::new();
    for _ in 0..NODES {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command
            .args(["--node", kind, url, prefix])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (input, output) = (
            child.stdin.take().ok_or("no pipe")?,
            child.stdout.take().ok_or("no pipe")?,
        );
        nodes.push((child, input, BufReader::new(output)));
    }
    for (_, _, output) in &mut nodes {
        if output.read_line(&mut String::new())? == 0 {
            return Err("a node did not start".into());
        }
    }
    // From before the first request until after the last response.
    let start = Instant::now();
    for (_, input, _) in &mut nodes {
        input.write_all(b"go\n")?;
    }
    println!("{title}\n  node     sent   allowed   denied");
    let (mut all, mut total) = (0, 0);
    let mut reports = Vec::new();
    for (child, _, mut output) in nodes {
        let mut line = String::new();
        output.read_to_string(&mut line)?;
        reports.push((child, line));
    }
    let seconds = start.elapsed().as_secs_f64();
    for (number, (mut child, line)) in reports.into_iter().enumerate() {
        child.wait()?;
        let (sent, allowed) = line.trim().split_once(' ').ok_or("a node failed")?;
        let (sent, allowed): (u64, u64) = (sent.parse()?, allowed.parse()?);
        println!(
            "  {:4}  {sent:7}  {allowed:8}  {:7}",
            number + 1,
            sent - allowed
        );
        (all, total) = (all + sent, total + allowed);
    }
    let max = (BURST as f64 + RATE as f64 * seconds).floor() as u64;
    println!("   sum  {all:7}  {total:8}  {:7}", all - total);
    println!("  the limit allows {BURST} + {RATE}/s * {seconds:.3} s = {max}");
    match total.checked_sub(max) {
        None | Some(0) => println!("  the limit holds\n"),
        Some(over) => println!(
            "  {over} too many: {:.1} times the limit\n",
            total as f64 / max as f64
        ),
    }
    Ok(total <= max)
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, kind, url, prefix] = &arguments[..]
        && flag == "--node"
    {
        return node(kind, url, prefix).map(|()| ExitCode::SUCCESS);
    }
    let given = arguments
        .into_iter()
        .next()
        .or_else(|| std::env::var("REDIS_URL").ok());
    let own = if given.is_some() {
        None
    } else {
        OwnRedis::start()?
    };
    let Some(url) = given.or_else(|| own.as_ref().map(|own| own.url.clone())) else {
        eprintln!(
            "redis-server was not found: install it, or pass the address of a Redis: three_nodes redis://127.0.0.1:6379"
        );
        return Ok(ExitCode::from(2));
    };
    // Keys of this run only, deleted at the end.
    let prefix = format!("three-nodes-{}", std::process::id());
    println!("{NODES} processes, {CALLERS} callers each, one limit: {RATE}/s burst {BURST}\n");
    let holds = fleet("ratekeeper on Redis", "ratekeeper", &url, &prefix)?;
    fleet(
        "GET, then SET, on the same Redis",
        "get_then_set",
        &url,
        &prefix,
    )?;
    let mut redis = redis::Client::open(url)?.get_connection()?;
    redis::cmd("DEL")
        .arg(&[format!("{prefix}:secret"), format!("{prefix}:naive")])
        .exec(&mut redis)?;
    Ok(if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A redis-server that is stopped when this is dropped.
struct OwnRedis {
    child: Child,
    url: String,
}

impl OwnRedis {
    /// Starts a redis-server; `None` if it is not installed.
    fn start() -> Result<Option<Self>, Box<dyn Error>> {
        // The listener is dropped here, which frees the port.
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        let mut command = Command::new("redis-server");
        command.args([
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--port",
            &port.to_string(),
        ]);
        let child = match command.stdout(Stdio::null()).spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let own = Self {
            child,
            url: format!("redis://127.0.0.1:{port}"),
        };
        let client = redis::Client::open(own.url.as_str())?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while client.get_connection().is_err() {
            if Instant::now() > deadline {
                return Err("redis-server does not answer".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Some(own))
    }
}

impl Drop for OwnRedis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
