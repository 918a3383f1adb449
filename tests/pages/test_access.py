"""Permission to train: local, over a network, signed in, listed."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import streamlit as st
from patience import PATIENCE
from streamlit.testing.v1 import AppTest

OPEN = "Open."
LOGIN = {"auth": {"provider": "any"}, "trainers": {"emails": ["Ada@Example.com"]}}
ADA = {"is_logged_in": True, "email": "ada@example.com"}


def script() -> None:
    import streamlit as st

    from pages.server import access
    from pages.training import gate

    gate.require_trainer()
    st.text("Open.")
    st.text(access.visitor())
    st.text(str(access.upload_megabytes()))


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AppTest]]:
    """Return `serve(address, names, secrets, user)`, which runs a guarded page once."""
    options: dict[str, Any] = {}
    real = st.get_option
    monkeypatch.setattr(st, "get_option", lambda name: options.get(name, real(name)))

    def run(address: str | None, names: list[str], secrets: dict | None = None, user: dict | None = None) -> AppTest:
        options.update({"server.address": address, "server.allowedHosts": names})
        page = AppTest.from_function(script, default_timeout=PATIENCE)
        if secrets:
            page.secrets.update(secrets)
        page.user = user or {"is_logged_in": False}
        page.run()
        assert not page.exception
        return page

    yield run


def is_open(page: AppTest) -> bool:
    return any(text.value == OPEN for text in page.text)


HERE = ("127.0.0.1", ["127.0.0.1", "localhost"])
NETWORK = ("0.0.0.0", ["vit.example.com"])


def test_local_users_may_train(serve: Callable[..., AppTest]) -> None:
    page = serve(*HERE)
    assert is_open(page) and page.text[1].value == ""


@pytest.mark.parametrize(
    ("address", "names"),
    [
        (None, ["localhost"]),
        ("0.0.0.0", ["localhost"]),
        ("127.0.0.1", []),
        ("127.0.0.1", ["localhost", "vit.example.com"]),
        ("127.0.0.1", ["*"]),
    ],
)
def test_network_without_a_login_keeps_training_closed(
    serve: Callable[..., AppTest], address: str | None, names: list[str]
) -> None:
    page = serve(address, names)
    assert not is_open(page) and not page.button
    assert "no login is set up" in page.markdown[0].value


@pytest.mark.parametrize(
    "header",
    [
        "Forwarded",
        "X-Forwarded-For",
        "x-forwarded-proto",
        "X-Forwarded-Prefix",
        "X-Real-IP",
        "Via",
        "CF-Connecting-IP",
        "True-Client-IP",
        "X-Client-IP",
        "X-Original-Host",
        "X-Cluster-Client-Ip",
        "Fastly-Client-IP",
        "X-Envoy-External-Address",
        "X-Amzn-Trace-Id",
        "X-ProxyUser-Ip",
        "X-Azure-ClientIP",
        "Fly-Client-IP",
        "X-Real-Port",
        "WL-Proxy-Client-IP",
        "X-Coming-From",
        "X-Request-Id",
        "X-Correlation-Id",
        "X-Request-Start",
        "X-B3-TraceId",
        "Traceparent",
        "Remote-Addr",
        "X-Varnish",
        "X-Sucuri-ClientIP",
        "X-Vercel-Id",
        "X-Nginx-Proxy",
        "X-Scheme",
        "X-Forwarded",
        "X-Originating-IP",
        "X-Remote-User",
        "X-Forwarded-User",
        "X-Script-Name",
        "X-JupyterHub-Activity",
        "X-Tailscale-User",
        "Tailscale-User-Login",
        "Ngrok-Skip-Browser-Warning",
        "X-Cache",
        "Authorization",
        "Max-Forwards",
        "CDN-Loop",
        "A-Name-That-Nobody-Uses-Yet",
    ],
)
def test_nobody_counts_as_local_behind_a_proxy(
    serve: Callable[..., AppTest], monkeypatch: pytest.MonkeyPatch, header: str
) -> None:
    monkeypatch.setattr(type(st.context), "headers", {"Host": "localhost:8501", header: "203.0.113.9"})
    assert not is_open(serve(*HERE))


def test_header_that_gives_a_proxy_away_is_named(
    serve: Callable[..., AppTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(st.context), "headers", {"Host": "localhost:8501", "X-Extension": "1"})
    assert "a proxy sends X\\-Extension" in serve(*HERE).markdown[0].value


@pytest.mark.parametrize("name", ["runs_per_person", "free_gb", "upload_mb"])
@pytest.mark.parametrize("value", ["many", [1], -1, float("nan"), 1e300])
def test_limit_that_is_no_number_closes_the_page(serve: Callable[..., AppTest], name: str, value: Any) -> None:
    page = serve(*HERE, {"limits": {name: value}})
    assert not is_open(page) and f"{name.replace('_', chr(92) + '_')} under" in page.markdown[0].value


def test_list_of_people_that_is_no_list_admits_nobody(serve: Callable[..., AppTest]) -> None:
    assert not is_open(serve(*NETWORK, LOGIN | {"trainers": {"emails": 5}}, ADA))


def test_headers_sent_by_local_browsers_are_not_a_proxys(
    serve: Callable[..., AppTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("Host", "Origin", "User-Agent", "Accept-Language", "Cookie", "Upgrade", "Connection", "Pragma", "DNT")
    names += ("Cache-Control", "Sec-WebSocket-Key", "Sec-Fetch-Site", "Accept-Encoding", "Sec-WebSocket-Protocol")
    monkeypatch.setattr(type(st.context), "headers", dict.fromkeys(names, "value"))
    assert is_open(serve(*HERE))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("server.enableCORS", False),
        ("server.enableXsrfProtection", False),
        ("server.corsAllowedOrigins", ["https://vit.example.com"]),
        ("server.trustedUserHeaders", {"X-User": "email"}),
        ("browser.serverAddress", "vit.example.com"),
    ],
)
def test_setting_that_admits_others_ends_local_trust(
    serve: Callable[..., AppTest], monkeypatch: pytest.MonkeyPatch, option: str, value: Any
) -> None:
    assert is_open(serve(*HERE))
    before = st.config.get_option(option), st.config.get_where_defined(option)
    st.config.set_option(option, value, "set by a test")
    try:
        assert not is_open(serve(*HERE))
    finally:
        st.config.set_option(option, *before)


@pytest.mark.parametrize("where", [HERE, NETWORK])
def test_stranger_is_asked_to_sign_in_if_there_is_a_login(serve: Callable[..., AppTest], where: tuple) -> None:
    page = serve(*where, LOGIN)
    assert not is_open(page) and [button.label for button in page.button] == ["Sign in"]


def test_listed_people_may_train_in_any_spelling(serve: Callable[..., AppTest]) -> None:
    page = serve(*NETWORK, LOGIN, ADA | {"email": "ADA@example.com "})
    assert is_open(page) and page.text[1].value == "ada@example.com"


@pytest.mark.parametrize(
    ("user", "words"),
    [
        (ADA | {"email": "eve@example.com"}, "not on the list"),
        (ADA | {"email": "ada@example.com.evil.org"}, "not on the list"),
        (ADA | {"email_verified": False}, "has not verified"),
        ({"is_logged_in": True}, "without an e\\-mail address"),
        ({"is_logged_in": False, "email": "ada@example.com"}, "Sign in"),
    ],
)
def test_everybody_else_gets_the_reason(serve: Callable[..., AppTest], user: dict, words: str) -> None:
    page = serve(*NETWORK, LOGIN, user)
    assert not is_open(page) and words in page.markdown[0].value


def test_login_without_a_list_admits_nobody(serve: Callable[..., AppTest]) -> None:
    assert not is_open(serve(*NETWORK, {"auth": {"provider": "any"}}, ADA))


def test_string_is_not_accepted_as_a_list(serve: Callable[..., AppTest]) -> None:
    secrets = LOGIN | {"trainers": {"emails": "ada@example.com, eve@example.com"}}
    assert not is_open(serve(*NETWORK, secrets, ADA | {"email": "a"}))


def test_unreadable_secrets_file_closes_the_page(
    serve: Callable[..., AppTest], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "secrets.toml"
    broken.write_text("[auth")
    real = st.get_option
    monkeypatch.setattr(st, "get_option", lambda name: [str(broken)] if name == "secrets.files" else real(name))
    assert not is_open(serve(*HERE))


def test_upload_limit_is_never_above_the_servers(serve: Callable[..., AppTest]) -> None:
    most = int(st.get_option("server.maxUploadSize"))
    limits = [{"upload_mb": 5}, {"upload_mb": 10**6}]
    pages = [serve(*NETWORK, LOGIN | {"limits": limit}, ADA) for limit in limits]
    assert [page.text[2].value for page in pages] == ["5", str(most)]
