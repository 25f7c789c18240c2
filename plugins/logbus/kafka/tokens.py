"""Tokens for SASL's OAUTHBEARER that librdkafka does not get by itself: those of Amazon's and Google's managed clusters, or of
a function of the user's.

Settings name what makes them by a text, the recipe, since they travel as JSON, also to Spark's executors: `msk:REGION`, `gcp`,
or the dotted path of a function that librdkafka's clients could call. It is given `sasl.oauthbearer.config`, and returns a
token and when that expires, in seconds since the epoch. Where the address says enough, no recipe is needed, as for Airflow's
Kafka provider.
"""

from __future__ import annotations

import base64
import importlib
import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC
from functools import partial
from typing import Any

from logbus import errors
from logbus.errors import UserError

TokenFunction = Callable[[str], tuple[str, float]]

OAUTHBEARER, RECIPE = "OAUTHBEARER", "oauth_cb"
MSK, GCP = "msk:", "gcp"
# b-1.orders.abcde1.c2.kafka.eu-west-1.amazonaws.com:9098, boot-abcde1.c2.kafka-serverless.us-east-1.amazonaws.com:9098
MSK_ADDRESS = re.compile(r"\.kafka(?:-serverless)?\.([a-z\d-]+)\.amazonaws\.com(?:\.cn)?(?=[:,\s]|$)", re.IGNORECASE)
GCP_ADDRESS = re.compile(r"\.managedkafka\.[\w.-]*cloud\.goog(?=[:,\s]|$)", re.IGNORECASE)
GCP_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def recipe_of(config: Mapping[str, Any]) -> str | None:
    """What makes the tokens of a client with these settings; None where it needs none, or librdkafka gets them."""
    if str(config.get("sasl.mechanism") or config.get("sasl.mechanisms")).upper() != OAUTHBEARER:
        return None
    if own := config.get(RECIPE):
        return str(own)
    if config.get("sasl.oauthbearer.method") == "oidc" or config.get("enable.sasl.oauthbearer.unsecure.jwt"):
        return None
    servers = str(config.get("bootstrap.servers"))
    if (address := MSK_ADDRESS.search(servers)) is not None:
        return MSK + address[1].lower()
    if GCP_ADDRESS.search(servers):
        return GCP
    raise UserError(
        "sasl.mechanism is OAUTHBEARER, and no setting says where tokens come from: sasl.oauthbearer.method=oidc with "
        "sasl.oauthbearer.token.endpoint.url, or oauth_cb with msk:REGION, gcp, or the dotted path of a function"
    )


def token_function(recipe: str) -> TokenFunction:
    """What the recipe names. `UserError` with what to install or to correct."""
    if recipe.startswith(MSK):
        errors.require("aws_msk_iam_sasl_signer")
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

        return partial(msk_token, MSKAuthTokenProvider, recipe.removeprefix(MSK))
    if recipe == GCP:
        errors.require("google.auth")
        return gcp_token
    module, _, name = recipe.rpartition(".")
    try:
        function: TokenFunction = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"oauth_cb is {recipe!r}, and there is no such function here: {error}") from None
    if not callable(function):
        raise UserError(f"oauth_cb is {recipe!r}, which is not a function")
    return function


def msk_token(provider: Any, region: str, config: str) -> tuple[str, float]:
    """A signed request, by the credentials that AWS's own libraries find; made here, without asking anybody."""
    token, expires_ms = provider.generate_auth_token(region)
    return token, expires_ms / 1000


def gcp_token(config: str) -> tuple[str, float]:
    """An access token of the application's default credentials, in the frame of a JWT that Google's brokers take."""
    import google.auth
    from google.auth.transport.requests import Request

    credentials, _ = google.auth.default(scopes=[GCP_SCOPE])
    credentials.refresh(Request())
    expires = credentials.expiry.replace(tzinfo=UTC).timestamp()
    head = {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    claims = {
        "iss": "Google",
        "sub": credentials.service_account_email,
        "scope": "kafka",
        "iat": int(time.time()),
        "exp": int(expires),
    }
    parts = (json.dumps(head), json.dumps(claims), credentials.token)
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts), expires
