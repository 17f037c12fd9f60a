"""A store over TLS: certificates that the system trusts are accepted, and no others."""

import datetime
import ipaddress
import socket
import ssl
import threading
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from test_remote import Engine, s3, server, told  # noqa: F401

KEYS = {
    "ec": lambda: ec.generate_private_key(ec.SECP256R1()),
    "rsa": lambda: rsa.generate_private_key(65537, 2048),
}


def certificate(subject, key, issuer, issuer_key, *more):
    """A certificate that begins an hour ago and ends in one."""
    now = datetime.datetime.now(datetime.UTC)
    hour = datetime.timedelta(hours=1)
    name = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, who)]) for who in (subject, issuer)]
    built = x509.CertificateBuilder().subject_name(name[0]).issuer_name(name[1])
    built = built.public_key(key.public_key()).serial_number(x509.random_serial_number())
    built = built.not_valid_before(now - hour).not_valid_after(now + hour)
    for extension in more:
        built = built.add_extension(extension, critical=False)
    return built.sign(issuer_key, hashes.SHA256())


def pem(*certificates):
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in certificates)


def pump(source, sink):
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        sink.close()


@pytest.fixture(params=KEYS)
def authority(request, s3, server, tmp_path, monkeypatch):  # noqa: F811
    """A server over TLS in front of the plain one, and the file of who signed its certificate."""
    root, key = KEYS[request.param](), KEYS[request.param]()
    ca = x509.BasicConstraints(ca=True, path_length=None)
    signer = certificate("authority", root, "authority", root, ca)
    name = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    (tmp_path / "server.pem").write_bytes(
        pem(certificate("server", key, "authority", root, name))
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    (tmp_path / "authority.pem").write_bytes(pem(signer))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    listening = socket.create_server(("127.0.0.1", 0))
    plain = urlsplit(server)

    def serve():
        while True:
            try:
                client = context.wrap_socket(listening.accept()[0], server_side=True)
            except ssl.SSLError:
                continue
            except OSError:
                return
            behind = socket.create_connection((plain.hostname, plain.port))
            for ends in ((client, behind), (behind, client)):
                threading.Thread(target=pump, args=ends, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{listening.getsockname()[1]}")
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    yield tmp_path / "authority.pem"
    listening.close()


def test_a_server_whose_certificate_the_system_trusts_is_used(authority, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    Engine("s3://prefixes").store("abcdef")
    assert Engine("s3://prefixes").restore("abcdefg") == 6


def test_a_server_whose_certificate_nobody_trusts_is_refused_and_told(authority):
    assert "SSL_CERT_FILE may name a file" in told(Engine("s3://prefixes"), "'list'")
