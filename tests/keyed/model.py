"""What a keyed queue promises, in a page: a set of keys in plain Python, for the real one to be held to.

Time is in hours, and stands still but for `pass_hour`; what is due is due at 0.
"""

from dataclasses import dataclass, field


@dataclass
class Item:
    """One key's row."""

    state: str = "waiting"  # waiting, leased, completed, stalled
    priority: int = 0
    due: int = 0
    attempts: int = 0
    error: str | None = None
    token: object = None
    again: int | None = None  # asked for since it was leased, for then
    lapsed: bool = False
    completed_for: int = 0


@dataclass
class Model:
    """A queue. `held` are the keys whose rows somebody's open transaction has locked."""

    max_attempts: int
    keeps: bool
    items: dict[str, Item] = field(default_factory=dict)
    inbox: list[tuple[str, int, int]] = field(default_factory=list)  # committed: key, priority, due
    held: set[str] = field(default_factory=set)
    asked: dict[str, int] = field(default_factory=dict)  # when a key's last enqueue became durable …
    started: dict[str, int] = field(default_factory=dict)  # … and when a run of it last started
    clock: int = 0

    def tick(self):
        self.clock += 1
        return self.clock

    # producing

    def enqueue(self, entries):
        """One call outside a transaction."""
        if {key for key, _, _ in entries} & self.held & set(self.items):
            self.commit(entries)
        else:
            for key, priority, due in entries:
                self._merge(key, priority, due)
                self.asked[key] = self.tick()

    def commit(self, entries):
        """What a transaction had enqueued became durable."""
        self.inbox += entries
        for key, _, _ in entries:
            self.asked[key] = self.tick()

    def _merge(self, key, priority, due):
        item = self.items.get(key)
        if item is None or item.state in ("completed", "stalled"):
            self.items[key] = Item(priority=priority, due=due)
            return
        item.priority = max(item.priority, priority)
        if item.state == "leased":
            item.again = due if item.again is None else min(item.again, due)
        else:
            item.due = min(item.due, due)

    def _fold(self):
        rest = []
        for key, priority, due in self.inbox:
            if key in self.held and key in self.items:
                rest.append((key, priority, due))
            else:
                self._merge(key, priority, due)
        self.inbox = rest

    # consuming

    def claimable(self):
        """What a claim may lease now, the inbox folded."""
        self._fold()
        return {key for key, item in self.items.items() if key not in self.held and self._is_due(item)}

    def _is_due(self, item):
        if item.state == "waiting":
            return item.due == 0
        return item.state == "leased" and item.lapsed and (self._has_attempts(item) or item.again is not None)

    def _has_attempts(self, item):
        return not self.max_attempts or item.attempts < self.max_attempts

    def claim(self, keys, token, *, full):
        """These were handed out. Returns what each delivery says of itself."""
        told = {}
        for key in keys:
            item = self.items[key]
            reclaimed = item.state == "leased"
            afresh = item.again is not None and not self._has_attempts(item)
            item.state, item.token, item.again, item.lapsed = "leased", token, None, False
            item.attempts = 1 if afresh else item.attempts + 1
            self.started[key] = self.tick()
            told[key] = (item.priority, item.attempts, reclaimed)
        if not full:
            self.stall()
        return told

    def stall(self):
        for key, item in self.items.items():
            spent = item.state == "leased" and item.lapsed and item.again is None and not self._has_attempts(item)
            if spent and key not in self.held:
                item.state, item.token, item.lapsed = "stalled", None, False
                item.error = item.error or "the lease of the last attempt lapsed"

    def leased(self, key, token):
        """Whether the lease is there; of whoever, if `token` is None."""
        item = self.items.get(key)
        return item is not None and item.state == "leased" and token in (None, item.token)

    def complete(self, key, token=None):
        if not self.leased(key, token):
            return 0
        item = self.items[key]
        if item.again is not None:
            self.items[key] = Item(priority=item.priority, due=item.again)
        elif self.keeps:
            self.items[key] = Item("completed", item.priority, item.due, item.attempts)
        else:
            del self.items[key]
        return 1

    def release(self, key, token=None, *, delay=0, error=None):
        if not self.leased(key, token):
            return 0
        item = self.items[key]
        again, item.again, item.token, item.lapsed = item.again, None, None, False
        item.state, item.error = "waiting", error or item.error
        item.due = delay if again is None or error else min(delay, again)
        if not self._has_attempts(item):
            if again is None:
                item.state = "stalled"
            else:
                item.attempts, item.due = 0, max(again, delay if error else 0)
        return 1

    def extend(self, key, token):
        if not self.leased(key, token):
            return False
        self.items[key].lapsed = False
        return True

    def remove(self, key):
        found = key in self.items or any(key == each for each, _, _ in self.inbox)
        self.items.pop(key, None)
        self.inbox = [entry for entry in self.inbox if entry[0] != key]
        if found:
            self.asked.pop(key, None)
        return int(found)

    def reap(self):
        """The number deleted: what was completed an hour ago or longer."""
        self.stall()
        old = [
            key
            for key, item in self.items.items()
            if item.state == "completed" and item.completed_for >= 1 and key not in self.held
        ]
        for key in old:
            del self.items[key]
        return len(old)

    # time

    def lapse(self, key):
        self.items[key].lapsed = True

    def pass_hour(self):
        for item in self.items.values():
            item.due = max(item.due - 1, 0)
            item.again = None if item.again is None else max(item.again - 1, 0)
            item.completed_for += item.state == "completed"
        self.inbox = [(key, priority, max(due - 1, 0)) for key, priority, due in self.inbox]

    def forgotten(self):
        """Keys of which an enqueue was acknowledged, and no run started since."""
        return {key for key, asked in self.asked.items() if self.started.get(key, 0) < asked}
