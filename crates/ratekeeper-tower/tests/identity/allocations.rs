//! Finding the client does not allocate.

use super::{ip, lines, trusting};
use allocation_counter::measure;

#[test]
fn the_client_is_found_without_allocating() {
    let headers = lines([
        ("x-forwarded-for", &b"1.1.1.1, 203.0.113.7"[..]),
        ("x-forwarded-for", b"[fd00::1]:80, 10.0.0.2"),
        (
            "forwarded",
            br#"for=1.1.1.1, for="[2001:db8::7]:4711";host="a,b";proto=https, for=10.0.0.2"#,
        ),
        ("x-real-ip", b"203.0.113.7"),
    ]);
    for header in ["x-forwarded-for", "forwarded", "x-real-ip"] {
        let identity = trusting(header, &["10.0.0.0/8", "fd00::/8"]);
        for peer in ["10.0.0.1", "198.51.100.9"].map(ip) {
            // The first call may log a warning.
            let client = identity.client(Some(peer), &headers);
            let used = measure(|| assert_eq!(identity.client(Some(peer), &headers), client));
            assert_eq!(used.count_total, 0, "{header} from {peer}");
        }
    }
}
