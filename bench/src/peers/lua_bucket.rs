//! The usual Redis limiter: an exact token bucket in a script, one call per decision, pipelined on
//! one connection.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, Script};
use std::sync::Arc;

/// GCRA on the server's clock. Burst · interval and the interval are arguments, in microseconds.
const SCRIPT: &str = "\
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local full, interval, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now) + interval * cost
if tat - now > full then return { 0, 0, tat - full - now, tat - interval * cost - now } end
redis.call('SET', KEYS[1], string.format('%.0f', tat), 'PX', math.ceil((tat - now) / 1000) + 1)
return { 1, math.floor((full - (tat - now)) / interval), 0, tat - now }
";

#[derive(Clone)]
pub(crate) struct LuaBucket {
    connection: MultiplexedConnection,
    script: Arc<Script>,
    full: u64,
    interval: u64,
}

impl LuaBucket {
    pub(crate) async fn connect(url: &str, burst: u64, interval: u64) -> redis::RedisResult<Self> {
        let info = url.into_connection_info()?;
        let info = info.set_tcp_settings(redis::io::tcp::TcpSettings::default().set_nodelay(true));
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1_024);
        let connection = Client::open(info)?
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        Ok(Self {
            connection,
            script: Arc::new(Script::new(SCRIPT)),
            full: burst * interval,
            interval,
        })
    }

    pub(crate) async fn check(&mut self, key: &str) -> bool {
        let mut call = self.script.key(key);
        call.arg(self.full).arg(self.interval).arg(1);
        let told: Vec<i64> = call
            .invoke_async(&mut self.connection)
            .await
            .expect("Redis answers");
        told[0] == 1
    }
}
