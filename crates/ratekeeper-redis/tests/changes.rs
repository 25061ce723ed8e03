//! Live changes of a limit, and charges made before them.

mod common;

use common::{limit, run};
use ratekeeper::{Ask, Mode, Store, store::Source};
use ratekeeper_redis::RedisStore;
use ratekeeper_testkit::RedisServer;
use std::time::Duration;

#[test]
fn a_charge_before_a_change_is_not_refunded_and_is_counted() {
    run(async {
        let server = RedisServer::start();
        let store = RedisStore::builder(server.url())
            .timeout(Duration::from_secs(10))
            .connect()
            .await
            .unwrap();
        let handle = store.limit("x", limit("10/d")).unwrap();
        let remaining = async || {
            let seen = store
                .decide(&[Ask::new(&handle, "ann").cost(0).mode(Mode::Peek)])
                .await;
            assert_eq!(seen.source(), Source::Redis);
            seen.results().next().unwrap().decision().remaining()
        };
        let [before, same] = [store.decide(&[Ask::new(&handle, "ann").cost(4)]).await, {
            store.decide(&[Ask::new(&handle, "ann").cost(3)]).await
        }];
        store.settle(same, &[1]).await;
        assert_eq!(remaining().await, 5, "what was not used comes back");
        // The same rate and another burst: the units stay the same.
        store.set_limit(&handle, limit("10/d burst 8"));
        assert_eq!(remaining().await, 5, "the tokens stay");
        store.settle(before, &[0]).await;
        assert_eq!(remaining().await, 5);
        assert_eq!(store.status().counts.not_returned, 4);
    });
}
