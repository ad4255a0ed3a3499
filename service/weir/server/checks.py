"""What can be found wrong with the server's settings before anything slow, and before the engine's process, begins."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import ExitStack
from pathlib import Path

from weir.config import ConfigError, ServerSettings
from weir.listening import listening_socket
from weir.server.admin import check_address
from weir.server.security import CertificateFiles
from weir.server.tokens import read_tokens

_LONGEST_SOCKET_PATH = 107


def check_server(settings: ServerSettings) -> None:
    """Raise ConfigError for settings that cannot work, and OSError for an address that somebody else listens on."""
    admin = check_address(settings.admin_address)
    if settings.tls_cert_file is not None and settings.tls_key_file is not None:
        CertificateFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file).read()
    if settings.auth_tokens_file is not None:
        read_tokens(settings.auth_tokens_file)
    wanted = [("port", settings.host, settings.port), ("metrics-port", settings.metrics_host, settings.metrics_port)]
    if settings.health_port is not None:
        wanted.append(("health-port", settings.host, settings.health_port))
    if admin.startswith("unix:"):
        check_socket(admin)
    else:
        host, _, admin_port = admin.rpartition(":")
        wanted.append(("admin-address", host.strip("[]"), int(admin_port)))
    with ExitStack() as held:  # all at once, so that two of them cannot be the same
        for name, host, port in wanted:
            held.enter_context(_bound(name, host, port))


def check_socket(address: str) -> None:
    """Raise ConfigError when no socket can be made at `unix:PATH`, and OSError when a server answers there.

    gRPC takes the place of a socket that is there, and the server before would be out of reach without a word.
    """
    path = Path(address.removeprefix("unix:").removeprefix("//"))
    if len(str(path).encode()) > _LONGEST_SOCKET_PATH:
        raise ConfigError(f"admin-address: {path} is longer than the {_LONGEST_SOCKET_PATH} bytes of a socket's path")
    if not path.parent.is_dir():
        raise ConfigError(f"admin-address: there is no folder {path.parent}")
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ConfigError(f"admin-address: {path} is there, and is no socket")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            probe.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        return  # free, or left behind by a server that was killed
    except TimeoutError:
        pass  # somebody listens, and is too busy to answer
    except OSError as error:
        raise ConfigError(f"admin-address: {path}: {error.strerror}") from None
    raise OSError(errno.EADDRINUSE, "another server listens there", address)


def _bound(name: str, host: str, port: int) -> socket.socket:
    try:
        return listening_socket(host, port)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"{name}: {host!r} is no address: {getattr(error, 'strerror', error)}") from None
    except OSError as error:
        # The library's text repeats the address in its own way.
        reason = os.strerror(error.errno) if error.errno else str(error)
        where = f"[{host.strip('[]')}]:{port}" if ":" in host else f"{host}:{port}"
        if error.errno == errno.EADDRINUSE:
            raise OSError(f"cannot listen on {where} ({name}): {reason}") from None
        raise ConfigError(f"{name}: cannot listen on {where}: {reason}") from None
