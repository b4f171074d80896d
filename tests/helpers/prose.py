"""What a page says in sentences: without code, tables and headings."""

import re

PRIVATE = r"\b(body|timid|outside|judged|dials?|told(?! from| apart)|mends?|unasked)\b"
"""words of ours that are not the field's"""


def prose(text):
    """Paragraphs and items of lists, each a block; inline code counts as one word.

    >>> prose("# Title\\n\\nUse `x = 1`, as [here](a.md).\\n\\n- One.\\n- Two.\\n\\n| a | b |")
    ['Use code, as here.', 'One.', 'Two.']
    """
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    text = "\n".join(line for line in text.split("\n") if not re.match(r"\||#|    |!\[|<", line))
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    blocks = re.split(r"\n\s*\n|\n(?=\s*- |\d+\. )", text)
    return [re.sub(r"\s+", " ", re.sub(r"^\s*(- |\d+\. )", "", block)).strip("* ") for block in blocks if block.strip()]


def sentences(text):
    """A full stop, a question mark or the end of a block ends one; colon and semicolon do not."""
    found = [part for block in prose(text) for part in re.split(r"(?<=[.?!])[)*\"]* +(?=[A-Z0-9*\"(`]|code)", block)]
    return [part for part in found if re.search(r"[a-z]", part)]


def words(text):
    return re.findall(r"[\w'’%.×+=/-]*\w[\w'’%]*", text)


def mean_length(text):
    """Words in a sentence.

    >>> mean_length("One two three. Four five:\\n\\n- six.")
    2.0
    """
    found = sentences(text)
    return sum(len(words(each)) for each in found) / len(found)
