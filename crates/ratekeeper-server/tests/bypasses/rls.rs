//! Envoy's rate limit service. It has no lines in [`table::GROUPS`](crate::table::GROUPS): no
//! client's request reaches it, so there is no path, host or header to write in another way. Envoy
//! makes domain and descriptors of a request, by its own configuration, and they are opaque: a
//! value that is spelled differently is another value, so what is one to the service has to be one
//! in Envoy's actions. What must hold here: a bucket that is used up denies whatever else is sent
//! with it.
//!
//! Believed without a check, since they come from Envoy and not from its clients: `limit` (a limit
//! of the descriptor's own, with a bucket of its own) and `is_negative_hits` (a refund).

use crate::proto::{Entry, RateLimitDescriptor, RateLimitRequest, RateLimitServiceClient};
use crate::support::{Server, directory, for_envoy};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Channel;
use tonic::{Code, Request};

const OK: Result<i32, Code> = Ok(1);
const OVER: Result<i32, Code> = Ok(2);

const LIMITS: &str = "
domain: edge
descriptors:
  - key: remote_address
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: tenant
    descriptors:
      - key: path
        rate_limit: { unit: day, requests_per_unit: 1 }
  - key: open
    rate_limit: { unlimited: true }
";

/// Entries of a descriptor.
type Entries = &'static [(&'static str, &'static str)];

/// One client, which has used up its token.
const A: Entries = &[("remote_address", "a")];

struct Client {
    runtime: Runtime,
    channel: Channel,
    _server: Server,
}

impl Client {
    fn start() -> Self {
        let server = Server::run(for_envoy(&directory(&[("limits.yaml", LIMITS)])));
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let url = format!("http://{}", server.grpc.unwrap());
        let channel = runtime
            .block_on(Channel::from_shared(url).unwrap().connect())
            .unwrap();
        Self {
            runtime,
            channel,
            _server: server,
        }
    }

    fn code(&self, descriptors: &[Entries]) -> Result<i32, Code> {
        self.code_of(Request::new(request("edge", descriptors)))
    }

    fn code_of(&self, request: Request<RateLimitRequest>) -> Result<i32, Code> {
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        self.runtime
            .block_on(client.should_rate_limit(request))
            .map(|response| response.into_inner().overall_code)
            .map_err(|status| status.code())
    }
}

fn request(domain: &str, descriptors: &[Entries]) -> RateLimitRequest {
    let entry = |(key, value): &(&str, &str)| Entry {
        key: (*key).into(),
        value: (*value).into(),
    };
    let descriptor = |entries: &Entries| RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        limit: None,
        hits_addend: None,
        is_negative_hits: false,
    };
    RateLimitRequest {
        domain: domain.into(),
        descriptors: descriptors.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}

#[test]
fn a_bucket_that_is_used_up_denies_whatever_is_sent_with_it() {
    let client = Client::start();
    assert_eq!([client.code(&[A]), client.code(&[A])], [OK, OVER]);
    const FRESH: Entries = &[("remote_address", "fresh")];
    let companies: &[&[Entries]] = &[
        &[A, A],
        &[FRESH, A],
        &[A, FRESH],
        // Without a limit, unknown, empty, and not as deep as a limit or deeper.
        &[&[("open", "x")], A],
        &[&[("unknown", "x")], A],
        &[&[], A],
        &[A, &[]],
        &[&[("", "")], A],
        &[&[("remote_address", "")], A],
        &[&[("tenant", "t")], A],
        &[&[("remote_address", "a"), ("remote_address", "a")], A],
        &[&[("tenant", "t"), ("path", "/")], A],
    ];
    for company in companies {
        assert_eq!(client.code(company), OVER, "{company:?}");
    }
    // All or nothing: none of those was charged on the way.
    for entries in [
        FRESH,
        &[("remote_address", "")],
        &[("tenant", "t"), ("path", "/")],
    ] {
        assert_eq!(
            [client.code(&[entries]), client.code(&[entries])],
            [OK, OVER],
            "{entries:?}"
        );
    }
    let many: Vec<Entries> = vec![&[("open", "x")]; 127];
    assert_eq!(client.code(&[&many[..], &[A]].concat()), OVER);
}

#[test]
fn no_number_of_hits_and_no_metadata_is_a_way_round() {
    let client = Client::start();
    assert_eq!([client.code(&[A]), client.code(&[A])], [OK, OVER]);
    for hits in [0, 1, 2, u32::MAX] {
        let mut asked = request("edge", &[A]);
        asked.hits_addend = hits;
        assert_eq!(client.code_of(Request::new(asked)), OVER, "{hits}");
    }
    for hits in [0, 1, u64::from(u32::MAX) + 2, u64::MAX] {
        let mut asked = request("edge", &[A]);
        asked.descriptors[0].hits_addend = Some(hits);
        assert_eq!(
            client.code_of(Request::new(asked)),
            OVER,
            "{hits} of a descriptor"
        );
    }
    for (name, value) in [
        ("x-forwarded-for", "192.0.2.1"),
        ("x-envoy-external-address", "192.0.2.1"),
        ("x-real-ip", "192.0.2.1"),
        ("forwarded", "for=192.0.2.1"),
        ("x-user-id", "vip"),
    ] {
        let mut asked = Request::new(request("edge", &[A]));
        asked.metadata_mut().insert(name, value.parse().unwrap());
        assert_eq!(client.code_of(asked), OVER, "{name}");
    }
}

/// A domain is a name in two configurations of the operator, and not what a client sends.
#[test]
fn a_domain_and_descriptors_are_opaque() {
    let client = Client::start();
    assert_eq!([client.code(&[A]), client.code(&[A])], [OK, OVER]);
    let code = |domain: &str, descriptors: &[Entries]| {
        client.code_of(Request::new(request(domain, descriptors)))
    };
    assert_eq!(code("", &[A]), Err(Code::InvalidArgument));
    assert_eq!(code("edge", &[]), Err(Code::InvalidArgument));
    let too_many: Vec<Entries> = vec![A; 129];
    assert_eq!(code("edge", &too_many), Err(Code::InvalidArgument));
    for other in ["Edge", "edge ", "edge\0", "edgeedge"] {
        assert_eq!(code(other, &[A]), OK, "no limits have been written for it");
    }
    // Each spelling is a value, and has one token as any other.
    for value in ["A", " a", "a ", "a\0", "%61", "", "\u{430}"] {
        let entries: &'static [_] = Vec::leak(vec![("remote_address", value)]);
        assert_eq!(
            [client.code(&[entries]), client.code(&[entries])],
            [OK, OVER],
            "{value:?}"
        );
    }
    // Parts do not run together.
    let pair = |tenant, path| -> Entries { Vec::leak(vec![("tenant", tenant), ("path", path)]) };
    for entries in [
        pair("a", "bc"),
        pair("ab", "c"),
        pair("", "abc"),
        pair("abc", ""),
    ] {
        assert_eq!(
            [client.code(&[entries]), client.code(&[entries])],
            [OK, OVER],
            "{entries:?}"
        );
    }
}
