"""HTML pages as a browser would read them."""

import base64
import hashlib
import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """The tags and the visible text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.inside = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self.inside):
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).replace("\N{NO-BREAK SPACE}", " ").split())


def check_self_contained(text):
    """Check that a page loads nothing, and runs no script but its own."""
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form", "a")
        assert not [name for name in attributes if name.startswith("on")], "no handlers in the mark-up"
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            assert attributes.get(name, "data:image/png;base64,").startswith("data:image/png;base64,")
    assert "url(" not in text
    assert "@import" not in text
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    assert [tag for tag, _ in page.tags].count("script") == len(scripts) == 1
    seal = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a)
    assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{seal}'"
    return page
