"""CA and certificate: when they are made again, and that the API server trusts what is served at each moment."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime, timedelta

import pytest
from cluster_double import ClusterDouble
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from webhook_stage import CONFIGURATION, NAME, SECRET, deploy

from gpushare.errors import UsageError
from gpushare.kubernetes.server import Access, Server
from gpushare.kubernetes.webhook.certificates import BEFORE, OF_CA, OF_SERVER, Kept, is_valid, renewed
from gpushare.kubernetes.webhook.keeper import Keeper, Place

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
NAMES = (NAME,)


def trusted(one: Kept, bundle: bytes, now: datetime) -> bool:
    store = Store(x509.load_pem_x509_certificates(bundle))
    try:
        verifier = PolicyBuilder().time(now).store(store).build_server_verifier(x509.DNSName(NAME))
        verifier.verify(x509.load_pem_x509_certificate(one.certificate), [])
    except VerificationError:
        return False
    return True


def first() -> Kept:
    made, why = renewed(Kept(), NAMES, NOW)
    assert why == "a new CA and a new certificate: there was none"
    return made


def test_what_is_made_is_trusted_and_stays():
    made = first()
    assert renewed(made, NAMES, NOW + timedelta(days=1)) == (made, "")
    assert trusted(made, made.bundle, NOW) and trusted(made, made.bundle, NOW - BEFORE + timedelta(minutes=1))
    assert not trusted(made, made.bundle, NOW + OF_SERVER + timedelta(minutes=1))


def test_what_ca_and_certificate_may_do():
    made = first()
    ca, one = (x509.load_pem_x509_certificate(pem) for pem in (made.bundle, made.certificate))
    uses = ("digital_signature", "key_cert_sign", "crl_sign", "content_commitment", "key_encipherment")
    uses += ("data_encipherment", "key_agreement")
    for found, may, constraints in (
        (ca, {"digital_signature", "key_cert_sign", "crl_sign"}, x509.BasicConstraints(ca=True, path_length=0)),
        (one, {"digital_signature"}, x509.BasicConstraints(ca=False, path_length=None)),
    ):
        usage = found.extensions.get_extension_for_class(x509.KeyUsage)
        basic = found.extensions.get_extension_for_class(x509.BasicConstraints)
        assert {name for name in uses if getattr(usage.value, name)} == may
        assert basic.value == constraints and usage.critical and basic.critical
    assert list(one.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.SERVER_AUTH
    ]


def test_a_name_may_be_long():
    long = f"{'a' * 63}.{'b' * 63}.svc"
    made, _ = renewed(Kept(), (long, NAME), NOW)
    assert trusted(made, made.bundle, NOW) and renewed(made, (long, NAME), NOW)[1] == ""


@pytest.mark.parametrize(
    ("later", "why"),
    [
        (timedelta(days=20), "a new certificate: the last one expires at 2026-12-23 12:00 UTC"),
        (timedelta(days=40), "a new certificate: the last one expired at 2026-12-23 12:00 UTC"),
        (timedelta(days=300), "a new CA and a new certificate: the last one expires at 2027-11-23 12:00 UTC"),
        (timedelta(days=400), "a new CA and a new certificate: the last one expired at 2027-11-23 12:00 UTC"),
        (
            timedelta(days=-2),
            "a new CA and a new certificate: the last one begins only at 2026-11-22 12:00 UTC; a clock was wrong",
        ),
    ],
)
def test_it_is_made_again_before_it_ends_and_when_a_clock_was_wrong(later, why):
    old, now = first(), NOW + later
    made, said = renewed(old, NAMES, now)
    assert said == why
    assert trusted(made, made.bundle, now) and renewed(made, NAMES, now) == (made, "")
    assert is_valid(made.certificate, now)
    assert (made.bundle == old.bundle) == ("a new CA" not in why)


def test_the_old_ca_stays_in_the_bundle_until_it_ends():
    old, now = first(), NOW + timedelta(days=245)
    served = renewed(old, NAMES, NOW + timedelta(days=240))[0]
    made, _ = renewed(served, NAMES, now)
    assert trusted(served, made.bundle, now), "what is served meanwhile"
    assert not trusted(made, served.bundle, now), "so it is not served before it is told"
    after = renewed(made, NAMES, now + timedelta(days=300))[0]
    assert len(x509.load_pem_x509_certificates(after.bundle)) == 2, "the first CA is over"


def test_the_bundle_stays_small_whatever_is_lost():
    made = first()
    for _ in range(8):
        before = x509.load_pem_x509_certificates(made.bundle)[0]
        made, _ = renewed(Kept(made.bundle, b"", made.certificate, made.key), NAMES, NOW)
        assert before in x509.load_pem_x509_certificates(made.bundle)
    assert len(x509.load_pem_x509_certificates(made.bundle)) == 4


@pytest.mark.parametrize("lost", ["bundle", "ca_key", "certificate", "key"])
def test_what_is_lost_or_garbled_is_made_again(lost):
    old = first()
    for value in (b"", b"garbage", getattr(first(), lost)):
        kept = Kept(**{name: getattr(old, name) for name in Kept.__slots__} | {lost: value})
        made, why = renewed(kept, NAMES, NOW)
        assert why and trusted(made, made.bundle, NOW) and renewed(made, NAMES, NOW)[1] == ""


def test_other_names_need_another_certificate():
    made, why = renewed(first(), ("other.gpushare.svc",), NOW)
    assert why == "a new certificate: it has other names"
    assert made.bundle and not trusted(made, made.bundle, NOW)


# ---- who keeps it --------------------------------------------------------------------------------------


@pytest.fixture
def api(tmp_path):
    made = ClusterDouble(tmp_path)
    deploy(made)
    yield made
    made.stop()


def keeper(api: ClusterDouble) -> Keeper:
    server = Server(Access.of_kubeconfig(api.kubeconfig))
    server.ask("GET", SECRET)  # from then on it has the API server's clock
    return Keeper(server, Place("gpushare", "gpushare-webhook", "gpushare-webhook"), NAMES)


def told(api: ClusterDouble) -> bytes:
    (webhook,) = api.objects[CONFIGURATION]["webhooks"]
    return base64.b64decode(webhook["clientConfig"]["caBundle"])


def test_two_replicas_have_one_certificate(api):
    one, two = keeper(api), keeper(api)
    first, second = one.look(), two.look()
    assert first == second is not None and told(api) == first.bundle
    versions = [api.objects[path]["metadata"]["resourceVersion"] for path in (SECRET, CONFIGURATION)]
    assert one.look() is two.look() is None
    assert versions == [api.objects[path]["metadata"]["resourceVersion"] for path in (SECRET, CONFIGURATION)]


def test_the_one_that_writes_later_takes_what_the_other_wrote(api):
    one, two = keeper(api), keeper(api)
    found = []

    def meanwhile(method, path, _body):
        if (method, path) == ("PATCH", SECRET) and not found:
            found.append(None)  # once
            found.append(two.look())
        return

    lock, api._lock = api._lock, _NoLock()  # a request within a request
    api.refuses = meanwhile
    mine = one.look()
    api._lock = lock
    assert mine == found[1] is not None


class _NoLock:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


def test_a_certificate_of_a_new_ca_is_served_one_look_after_it_was_told(api):
    one = keeper(api)
    before = one.look()
    api.ahead = timedelta(days=19).total_seconds()
    assert one.look() is None
    api.ahead = timedelta(days=21).total_seconds()
    served = one.look()
    assert served is not None and served.bundle == before.bundle and served.certificate != before.certificate
    for days in range(35, 240, 14):  # it follows
        api.ahead = timedelta(days=days).total_seconds()
        served = one.look() or served
    assert served.bundle == before.bundle
    api.ahead = timedelta(days=245).total_seconds()
    assert one.look() is None and told(api) != before.bundle, "told, and the old one is still served"
    now = datetime.now(UTC) + timedelta(days=245)
    assert trusted(served, told(api), now)
    after = one.look()
    assert after is not None and trusted(after, told(api), now)


@pytest.mark.parametrize("days", [500, -5])
def test_one_that_is_not_valid_is_replaced_at_once(api, days, caplog):
    caplog.set_level("INFO")
    one = keeper(api)
    one.look()
    api.ahead = timedelta(days=days).total_seconds()
    made = one.look()  # it asks for the Secret first, and has the clock then
    assert made is not None and trusted(made, told(api), datetime.now(UTC) + timedelta(days=days))
    assert "a new CA and a new certificate: the last one" in caplog.text
    side = "behind" if days > 0 else "ahead of"
    (seconds,) = re.findall(rf"this machine's clock is (\d+) s {side} the API server's", caplog.text)
    assert abs(int(seconds) - abs(days) * 86400) < 60


@pytest.mark.parametrize("path", [SECRET, CONFIGURATION])
def test_what_is_not_there_is_named(api, path):
    one = keeper(api)
    del api.objects[path]
    with pytest.raises(UsageError, match=f"there is no {path}"):
        one.look()


def test_a_configuration_that_somebody_has_written_again_is_told_again(api):
    one = keeper(api)
    made = one.look()
    deploy(api)  # kubectl replace: without the CA, and the Secret is empty
    again = one.look()
    assert again is not None and again != made and told(api) == again.bundle


def test_each_webhook_of_the_configuration_is_told(api):
    one = keeper(api)
    one.look()
    (webhook,) = api.objects[CONFIGURATION]["webhooks"]
    second = {"name": "other.gpushare.dev", "clientConfig": {"url": "https://localhost:1/pods"}}
    api.change(CONFIGURATION, lambda known: known.update(webhooks=[webhook, second]))
    one.look()
    both = api.objects[CONFIGURATION]["webhooks"]
    assert both[0] == webhook and both[1]["clientConfig"]["caBundle"] == webhook["clientConfig"]["caBundle"]
    assert both[1]["clientConfig"]["url"] == "https://localhost:1/pods"


def test_the_longest_times_are_those_of_the_documents():
    assert (timedelta(days=365), timedelta(days=30), timedelta(days=1)) == (OF_CA, OF_SERVER, BEFORE)
