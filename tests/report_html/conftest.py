from tests.browser import browser, tab
from tests.run.conftest import own_cache

__all__ = ["browser", "own_cache", "tab"]
