"""Wikitext, the markup in which Wikipedia is written, turned into plain prose."""

import re
from html import unescape

import mwparserfromhell
from mwparserfromhell import nodes
from mwparserfromhell.wikicode import Wikicode

__all__ = ["plain_text"]

# Sections that consist of citations and links.
LEFTOVERS = re.compile(
    r"(.+ )?(references|footnotes|bibliograph(y|ies)|citations)( .+)?|cited .+|see also|external links|further reading"
    r"|((primary|secondary) )?sources|notes|works cited|gallery",
    re.IGNORECASE,
)

# Tags that are not read as text. A formula leaves its line unreadable, so it is marked and the line dropped.
SILENT_TAGS = {"ref", "references", "gallery", "table", "timeline", "source", "syntaxhighlight", "pre", "s", "del"}
BLOCK_TAGS = {"blockquote", "poem", "div", "p", "center", "li"}
FORMULA = "\0"
SUPERSCRIPTS = str.maketrans("0123456789+-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻")

# Templates that stand in a sentence and carry its text in their first or last argument. All others are dropped.
FIRST_ARGUMENT = re.compile(
    r"lang-.+|ipa(-.+)?|nowrap|nobr|small(er)?|big|large|midsize|center|b?(lock)?quot(e|ation)|nihongo|vanchor|angbr|vr|sc"
    r"|abbr|flag|us\$|nq|railgauge|circa|hms|uss|sub|ws"
)
LAST_ARGUMENT = re.compile(r"(rtl-)?lang|transl|script(/.+)?|ill")
SYMBOLS = {
    "!": "|", "=": "=", "'": "’", "'s": "’s", "' \"": "’”", '-"': "”", "eqm": "⇌", "nbsp": " ", "spaces": " ",
    "ndash": "–", "spaced ndash": " – ", "snd": " – ", "snds": " – ", "mdash": "—", "mdashb": "—",
}  # fmt: skip


def plain_text(wikitext: str) -> str:
    """Return the prose of a page: paragraphs and headings with a blank line between them, each list item on its line.

    Without references, tables, pictures, categories, comments, formulas with the line they stand in, sections of
    citations and links, headings with nothing under them, and templates, except those that only dress a text.
    """
    text = _render(mwparserfromhell.parse(wikitext, skip_style_tags=True))
    return _without_leftover_sections(_mended(text))


def _render(code: Wikicode | None) -> str:
    return "" if code is None else "".join(map(_render_node, code.nodes))


def _render_node(node: nodes.Node) -> str:
    match node:
        case nodes.Text():
            return re.sub(r"'{5}|'{2,3}", "", node.value)
        case nodes.HTMLEntity():
            return unescape(str(node))
        case nodes.Heading():
            return f"\n\n{'=' * node.level} {_render(node.title)} {'=' * node.level}\n\n"
        case nodes.ExternalLink():
            return _render(node.title)
        case nodes.Wikilink():
            return _render_link(node)
        case nodes.Tag():
            return _render_tag(node)
        case nodes.Template():
            return _render_template(node)
    return ""


def _render_link(link: nodes.Wikilink) -> str:
    title = _render(link.title).strip()
    if re.match(r"(file|image|category)\s*:", title, re.IGNORECASE):
        return ""
    if link.text is None:
        # A bare [[fr:Titre]] is shown beside the page, not in it.
        return "" if re.match(r"[a-z]{2,3}(-[a-z-]+)?:\S", title) else title.removeprefix(":")
    return _render(link.text)


def _render_tag(tag: nodes.Tag) -> str:
    name, inside = str(tag.tag).strip().lower(), _render(tag.contents)
    if name in SILENT_TAGS:
        return ""
    if name == "math":
        formula = inside.replace("~", " ").strip()
        return FORMULA if re.search(r"[\\{}]", formula) else formula
    if name == "sup":
        return inside.translate(SUPERSCRIPTS)
    if name == "br":
        return "\n"
    if name == "dd":
        # It may follow its term on the same line. At the start of a line the colon goes, like all marks of a list.
        return f": {inside}"
    return f"\n{inside}\n" if name in BLOCK_TAGS and inside else inside


def _render_template(template: nodes.Template) -> str:
    name = _render(template.name).strip().lower().replace("_", " ")
    if name in SYMBOLS:
        return SYMBOLS[name]
    unnamed = [p for p in template.params if re.fullmatch(r"\d+|text|quote", str(p.name).strip())]
    arguments = [_render(p.value).strip() for p in unnamed]
    if not arguments:
        return ""
    if name in {"convert", "cvt"}:
        # {{convert|6|ft|2|in|cm}} and {{convert|10|to|20|km|mi}} give the quantity in four arguments, others in two.
        return " ".join(arguments[: 4 if len(arguments) > 3 and re.match(r"[\d.]", arguments[2]) else 2])
    if name == "chem":
        return "".join(arguments)
    if name in {"frac", "sfrac"}:
        return "/".join(arguments if len(arguments) > 1 else ["1", *arguments])
    if name == "as of":
        return f"{'as' if template.has('lc') else 'As'} of {' '.join(arguments)}"
    if LAST_ARGUMENT.fullmatch(name):
        return arguments[-1]
    if FIRST_ARGUMENT.fullmatch(name):
        return f"\n{arguments[0]}\n" if "quot" in name else arguments[0]
    return ""


def _mended(text: str) -> str:
    """Return the rendered text without unbalanced markup and without the holes that removed markup leaves."""
    text = re.sub(r"[\u00ad\u200b\u200e\u200f\ufeff]", "", text)
    text = re.sub(rf"^.*{FORMULA}.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^ ?(\{\||\|\}|\||!).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"__[A-Z]+__|\[\[|\]\]|\{\{|\}\}|</?[A-Za-z]+( [^<>\n]*)?/?>", "", text)
    text = re.sub(r"[^\S\n]+", " ", text)
    text = re.sub(r"([(\[])[ ,;:/]+", r"\1", text)
    text = re.sub(r"[ ,;:/]+([)\]])", r"\1", text)
    text = re.sub(r" ?\(\)| ?\[\]", "", text)
    text = re.sub(r"(?<=\w) +([,;:.?!])(?=\s|$)", r"\1", text)
    text = re.sub(r"^[*#:; ]+|[ ]+$", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _without_leftover_sections(text: str) -> str:
    pieces = re.split(r"^(={2,6}) *(.*?) *=+$", text, flags=re.MULTILINE)
    kept, dropped_level = [], 7
    for marks, title, body in [("=", "", pieces[0]), *zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True)]:
        level = len(marks)
        if level <= dropped_level:
            dropped_level = level if LEFTOVERS.fullmatch(title) else 7
        if dropped_level == 7:
            kept.append((level, title, body.strip()))
    paragraphs, following = [], 0
    for level, title, body in reversed(kept):
        if body or following > level:
            paragraphs += [body, title]
            following = level
    return "\n\n".join(filter(None, reversed(paragraphs)))
