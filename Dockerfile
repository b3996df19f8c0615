# Builds the wheel with a compiler, so that the image has what is compiled without having one.
FROM python:3.12 AS build
COPY pyproject.toml README.md LICENSE hatch_build.py /build/
COPY src /build/src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /build

FROM python:3.12-slim
COPY --from=build /wheels /wheels
# With Arrow, which seals full segments to Parquet, and with the dashboard.
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)[server]" && rm -r /wheels \
    && useradd --uid 1000 --no-create-home --shell /usr/sbin/nologin remuda \
    && install --directory --owner=remuda --group=remuda --mode=700 /data /config

USER remuda
VOLUME /data /config
EXPOSE 5672 5680 15672
STOPSIGNAL SIGTERM
# Whoever says hello in AMQP must hear something, if only that TLS is wanted.
HEALTHCHECK --interval=10s --timeout=8s --start-period=30s CMD ["python", "-c", "import socket; peer = socket.create_connection(('127.0.0.1', 5672), 5); peer.sendall(b'AMQP\\0\\0\\x09\\1'); peer.recv(8)"]
# Mount a users file here, or have REMUDA_DEFAULT_USER and REMUDA_DEFAULT_PASS make it.
ENV REMUDA_USERS=/config/users.toml
ENTRYPOINT ["remuda", "serve", "--data", "/data"]
CMD ["--listen", "0.0.0.0:5672", "--management", "0.0.0.0:15672"]
