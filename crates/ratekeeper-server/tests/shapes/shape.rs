//! The shape of one exchange: the request and its upload, and the expected response.

use sha2::{Digest, Sha256};

/// One line of the table. The query defines the response of the upstream (see
/// tests/upstreams/README.md).
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) method: &'static str,
    pub(crate) query: String,
    pub(crate) upload: Option<Upload>,
    pub(crate) headers: Vec<(&'static str, &'static str)>,
    /// Left out of the short form.
    pub(crate) is_long: bool,
}

/// The body of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upload {
    pub(crate) size: usize,
    /// Bytes that are written at once.
    pub(crate) chunk: usize,
    /// The pause between chunks.
    pub(crate) pause_millis: u64,
    pub(crate) is_chunked: bool,
    pub(crate) has_trailer: bool,
}

pub(crate) fn get(query: impl Into<String>) -> Shape {
    Shape {
        method: "GET",
        query: query.into(),
        upload: None,
        headers: Vec::new(),
        is_long: false,
    }
}

pub(crate) fn head(query: impl Into<String>) -> Shape {
    Shape {
        method: "HEAD",
        ..get(query)
    }
}

/// A request with a body of known length; the query describes the response.
pub(crate) fn post(size: usize, query: impl Into<String>) -> Shape {
    let upload = Upload {
        size,
        chunk: 65_536,
        pause_millis: 0,
        is_chunked: false,
        has_trailer: false,
    };
    Shape {
        method: "POST",
        upload: Some(upload),
        ..get(query)
    }
}

/// A request whose body is sent in `count` chunks of a size.
pub(crate) fn post_chunks(chunk: usize, count: usize, query: impl Into<String>) -> Shape {
    post(chunk * count, query).uploading(|upload| (upload.chunk, upload.is_chunked) = (chunk, true))
}

impl Shape {
    fn uploading(mut self, change: impl FnOnce(&mut Upload)) -> Self {
        change(self.upload.as_mut().expect("a shape with a body"));
        self
    }

    /// The body comes in chunks with pauses.
    pub(crate) fn trickled(self, chunk: usize, pause_millis: u64) -> Self {
        self.uploading(|upload| (upload.chunk, upload.pause_millis) = (chunk, pause_millis))
    }

    pub(crate) fn with_trailer(self) -> Self {
        self.uploading(|upload| upload.has_trailer = true)
            .header("Trailer", "X-Sum")
    }

    pub(crate) fn header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.push((name, value));
        self
    }

    pub(crate) fn long(mut self) -> Self {
        self.is_long = true;
        self
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.query
            .split('&')
            .filter_map(|field| field.split_once('='))
            .find(|field| field.0 == name)
            .map(|field| field.1)
    }

    pub(crate) fn number(&self, name: &str) -> usize {
        self.text(name)
            .map_or(0, |text| text.parse().expect("a number"))
    }

    pub(crate) fn path(&self) -> String {
        format!("/shape?{}", self.query)
    }

    pub(crate) fn status(&self) -> u16 {
        self.text("status")
            .map_or(200, |text| text.parse().expect("a status"))
    }

    /// Whether the response can have no body.
    pub(crate) fn is_bodiless(&self) -> bool {
        self.method == "HEAD" || matches!(self.status(), 204 | 304)
    }

    /// The body that the upstream writes.
    pub(crate) fn body(&self) -> Vec<u8> {
        if self.is_bodiless() {
            return Vec::new();
        }
        let events = (0..self.number("events"))
            .map(|number| format!("id: {number}\ndata: event {number}\n\n"));
        let mut body = events.collect::<String>().into_bytes();
        body.extend(content(self.number("size")));
        body
    }

    /// The difference between a response and what the upstream sent, or `None`.
    pub(crate) fn mismatch(
        &self,
        response: &ReceivedResponse,
        sees_trailers: bool,
    ) -> Option<String> {
        if response.status != self.status() {
            let text = String::from_utf8_lossy(&response.body[..response.body.len().min(300)]);
            return Some(format!(
                "the status is {}, not {}: {}",
                response.status,
                self.status(),
                text.trim_end()
            ));
        }
        let expected = self.body();
        if response.body != expected {
            let at = response
                .body
                .iter()
                .zip(&expected)
                .position(|(got, sent)| got != sent);
            return Some(match at {
                Some(at) => {
                    let got = &response.body[at..response.body.len().min(at + 200)];
                    format!(
                        "the body, {} bytes, is different from byte {at} on: {}",
                        response.body.len(),
                        got.escape_ascii()
                    )
                }
                None => format!(
                    "the body has {} bytes, not {}",
                    response.body.len(),
                    expected.len()
                ),
            });
        }
        let length = response.header("content-length").map(str::to_owned);
        let sized = self.text("framing") == Some("sized") && self.status() == 200;
        if sized && length != Some(self.text("size").unwrap_or("0").to_owned()) {
            return Some(format!("the Content-Length is {length:?}"));
        }
        let (pads, padding) = (self.number("headers").max(1), self.number("head"));
        for pad in (0..pads).filter(|_| padding > 0) {
            let length = response.header(&format!("x-pad-{pad}")).map(str::len);
            if length != Some(padding / pads) {
                return Some(format!(
                    "the header x-pad-{pad} has {length:?} bytes, not {}",
                    padding / pads
                ));
            }
        }
        if sees_trailers && self.text("trailers").is_some() && !self.is_bodiless() {
            let sum = response
                .trailers
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case("x-sum"));
            if sum.map(|(_, value)| value) != Some(&hash(&expected)) {
                return Some(format!("the trailers are {:?}", response.trailers));
            }
        }
        let upload = self.upload.filter(|_| self.text("take") != Some("none"))?;
        let sent = content(upload.size);
        for (name, expected) in [
            ("x-received-length", Some(sent.len().to_string())),
            ("x-received-hash", Some(hash(&sent))),
            (
                "x-received-trailer",
                (upload.has_trailer && sees_trailers).then(|| "sum".to_owned()),
            ),
        ] {
            let got = response.header(name).map(str::to_owned);
            if expected.is_some() && got != expected {
                return Some(format!("{name} is {got:?}, not {expected:?}"));
            }
        }
        None
    }
}

/// A response as the client received it.
#[derive(Default, Debug)]
pub(crate) struct ReceivedResponse {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    /// How many informational responses came before it.
    pub(crate) informational: usize,
}

impl ReceivedResponse {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers
            .find(|(header, _)| header.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

/// The first bytes of every body. The period is 64,256 bytes, so that lost, doubled or swapped
/// chunks are noticed.
pub(crate) fn content(length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| ((at % 251 + at / 251) & 0xff) as u8)
        .collect()
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
