FROM python:3.12-slim

COPY pyproject.toml README.md LICENSE /build/
COPY src /build/src
# With Arrow, which seals full segments to Parquet, and with the dashboard.
RUN pip install --no-cache-dir "/build[server]" && rm -r /build \
    && useradd --uid 1000 --no-create-home --shell /usr/sbin/nologin remuda \
    && install --directory --owner=remuda --group=remuda --mode=700 /data

USER remuda
VOLUME /data
EXPOSE 5672 5680
STOPSIGNAL SIGTERM
# Whoever says hello in AMQP must hear something, if only that TLS is wanted.
HEALTHCHECK --interval=10s --timeout=8s --start-period=30s CMD ["python", "-c", "import socket; peer = socket.create_connection(('127.0.0.1', 5672), 5); peer.sendall(b'AMQP\\0\\0\\x09\\1'); peer.recv(8)"]
ENTRYPOINT ["remuda", "serve", "--data", "/data"]
CMD ["--listen", "0.0.0.0:5672", "--users", "/users.toml"]
