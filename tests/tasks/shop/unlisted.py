"""Tasks in a module that no worker imports by itself."""

from tests.tasks.native import task
from tests.tasks.shop.tasks import note


@task()
def whisper(text: str) -> str:
    note("whispered", text)
    return text.lower()


@task()
async def whisper_async(text: str) -> str:
    note("whispered", text)
    return text.lower()
