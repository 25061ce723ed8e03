# tollgate in an image of its own: the binary, the libraries it is linked to, and nothing else.
#
#   docker build -t tollgate .
#   docker run -p 8080:8080 tollgate                                     # the built-in policy: 100 a minute for each address
#   docker run -p 8080:8080 -v ./tollgate.toml:/etc/tollgate/tollgate.toml:ro tollgate     # yours

FROM rust:1.95-slim-trixie AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev ca-certificates \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY crates crates
COPY examples examples
COPY bench bench
COPY docs docs
COPY tests/overload tests/overload
RUN cargo build --release --locked -p tollgate-server
# What goes into the image, as it lies there.
COPY scripts/image scripts/image
RUN scripts/image target/release/tollgate /image

FROM scratch
COPY --from=build /image /
# In a container loopback is nobody's: each listener is told to be reachable. Publish the ports that you want, and the admin
# port to nobody but your monitoring.
COPY docs/deploy/container.toml /etc/tollgate/tollgate.toml
# Nobody in particular; it needs no rights, and no file but its configuration.
USER 65532:65532
EXPOSE 8080 8081 6380 9090
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s CMD ["/usr/bin/tollgate", "doctor", "--probe", "--config", "/etc/tollgate/tollgate.toml"]
ENTRYPOINT ["/usr/bin/tollgate"]
CMD ["serve", "--config", "/etc/tollgate/tollgate.toml"]
