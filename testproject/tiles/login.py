"""A link that logs into the admin as the demo's superuser: once, and soon.

The link carries a random secret, signed with the time; the secret is kept where the user's password would be (marked
unusable, as Django does), so that whoever redeems it replaces it in one UPDATE and the second comes too late. A
secret that is in no file of ours also makes the link unforgeable although the project's SECRET_KEY is public.
"""

from datetime import timedelta
from typing import Final

from django.contrib.auth import get_user_model, login
from django.contrib.auth.hashers import make_password
from django.core import signing
from django.http import HttpRequest

VALID_FOR: Final = timedelta(minutes=30)
USERNAME: Final = "demo"
_SALT: Final = "testproject.tiles.login"


def issue() -> str:
    """A token for a new link. Earlier ones no longer work."""
    secret = make_password(None)
    get_user_model()._default_manager.update_or_create(
        username=USERNAME,
        defaults={"password": secret, "is_staff": True, "is_superuser": True, "is_active": True},
    )
    return signing.dumps(secret, salt=_SALT)


def redeem(request: HttpRequest, token: str) -> bool:
    """Log the request's session in, if the token is the newest, not too old and not used before."""
    try:
        secret = signing.loads(token, salt=_SALT, max_age=VALID_FOR)
    except signing.BadSignature:
        return False
    users = get_user_model()._default_manager.filter(username=USERNAME)
    if not users.filter(password=secret).update(password=make_password(None)):
        return False
    login(request, users.get(), backend="django.contrib.auth.backends.ModelBackend")
    return True
