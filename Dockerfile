# An image with only the ratekeeper binary, the libraries it is linked to, and the CA certificates.
#
#   docker build -t ratekeeper .
#   docker run -p 8080:8080 ratekeeper                                     # the built-in policy: 100 a minute per address
#   docker run -p 8080:8080 -v ./ratekeeper.toml:/etc/ratekeeper/ratekeeper.toml:ro ratekeeper     # yours

FROM rust:1.95-slim-trixie AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev ca-certificates \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY crates crates
COPY examples examples
COPY docs docs
COPY tests/overload tests/overload
RUN cargo build --profile dist --locked -p ratekeeper-server
# The root directory of the image.
COPY scripts/image scripts/image
RUN scripts/image target/dist/ratekeeper /image

FROM scratch
COPY --from=build /image /
# Listeners bind to all addresses: loopback is unreachable in a container. Publish only the ports you need, and the admin port
# only to your monitoring.
COPY docs/deploy/container.toml /etc/ratekeeper/ratekeeper.toml
# An unprivileged user; it needs no file but its configuration.
USER 65532:65532
EXPOSE 8080 8081 6380 9090
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s CMD ["/usr/bin/ratekeeper", "doctor", "--probe", "--config", "/etc/ratekeeper/ratekeeper.toml"]
ENTRYPOINT ["/usr/bin/ratekeeper"]
CMD ["serve", "--config", "/etc/ratekeeper/ratekeeper.toml"]
