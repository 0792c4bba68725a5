"""Templates that would take the machine: each ends soon, in little memory."""

from pathlib import Path

import pytest

from streamdata.text import ChatRenderer
from streamdata.text.sandbox import MAX_CHARS, MAX_SOURCE_CHARS, compile_template
from streamdata.text.template_budget import MAX_BYTES
from tests.cpu import cpu_within
from tests.memory import begin_peak, peak
from tests.text.chat_templates import chat_tokenizer

LONG = "{% set x = 'x' * 60000000 %}"
MANY = "{% for i in range(9999) %}"
BLOCK = "{{% if false %}}{{% block b %}}{}{{% endblock %}}{{% endif %}}"
DAG = "{% set n = namespace(x=['x'], y=['x']) %}{% for i in range(40) %}{% set n.x = [n.x, n.x] %}"
VARARGS = (
    "{% set n = namespace(x=('x',)) %}{% macro m() %}{% set n.x = varargs %}{% endmacro %}"
    "{% for i in range(40) %}{{ m(n.x, n.x) }}{% endfor %}"
)
PAIRS = (
    "{% set n = namespace(x=('x',)) %}{% for i in range(40) %}{% set n.x = {n.x: n.x}.items() | first %}{% endfor %}"
)
HEX = "{% set n = ('f' * 20000000) | int(0, 16) %}"
NEAR = "{% set n, m = (2 ** 60) ** 60, (2 ** 59) ** 30 + 1 %}" + "{% for i in range(9999) %}" * 2
ENDS = "{% endfor %}{% endfor %}"
CALLS = "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}" + "{% call m() %}" * 18 + "{% endcall %}" * 18
DEEP = "{% set n = namespace(x='a ' * 500000) %}{% for i in range(400) %}{% set n.x = [n.x] %}{% endfor %}"
SAME_HASH = (
    "{% set n = namespace(x=[]) %}{% for i in range(999) %}{% set n.x = n.x + [i * (2 ** 61 - 1)] %}{% endfor %}"
)
NEARLY = "{% set x, y = 'a' * 2499, 'a' * 1247 ~ 'ba' %}" + "{% for i in range(9999) %}" * 2  # y is all but in x
SIMILAR = "{% set l = ['a' * 1000000 ~ 'b'] * 300000 %}{% set c = 'a' * 1000000 ~ 'c' %}"
WIDE = "{% set x = '🙂' * 16000000 %}"
INTEGER, TOKENS = "integer of more than 4,096 bits", "more than 10,000 tokens"
MANY_NAMES = "".join(f"{{%set x{number}=1%}}" for number in range(800))
CANNOT = "cannot have {% "
SPENT = f"more than {MAX_BYTES:,} bytes"

ATTACKS = {
    "width in %": ("{{ '%1000000000d' % 1 }}", "formats"),
    "width of %, given": ("{{ '%*d' % (1000000000, 1) }}", "formats"),
    "precision in %": ("{{ '%.1000000000f' % 1.5 }}", "formats"),
    "width of a long list of fields": ("{{ ('%99999d' * 1000) % ((1,) * 1000) }}", "formats"),
    "fields of %": ("{{ ('%(a)s' * 100000) % {'a': 'x' * 1000000} }}", "formats"),
    "width of the filter format": ("{{ '%1000000000s' | format('x') }}", "formats"),
    "width in format": ("{{ '{:1000000000d}'.format(1) }}", "formats"),
    "width of format, given": ("{{ '{:{w}}'.format(1, w=1000000000) }}", "formats"),
    "fields of format": ("{{ ('{0}' * 100000).format('x' * 1000000) }}", SPENT),
    "ljust": ("{{ 'x'.ljust(1000000000) }}", "pads"),
    "zfill": ("{{ 'x'.zfill(1000000000) }}", "pads"),
    "center": ("{{ 'x' | center(1000000000) }}", "pads"),
    "expandtabs": ("{{ ('\t' * 1000000).expandtabs(10000) }}", "pads"),
    "replace": ("{{ ('x' * 1000000).replace('x', 'y' * 10000) }}", "replaces in"),
    "replace of nothing": ("{{ ('x' * 1000000) | replace('', 'y' * 10000) }}", "replaces in"),
    "join": ("{{ 'x' * 1000000 }}{{ range(99999) | join('x' * 1000000) }}", "joins"),
    "indent": ("{{ ('x\n' * 1000000) | indent(100000) }}", "indents"),
    "wordwrap": ("{{ ('x' * 100000) | wordwrap(1, wrapstring='y' * 10000) }}", "wraps"),
    "batch": ("{{ [1] | batch(1000000000, 'x') | list }}", SPENT),
    "slice": ("{{ [1] | slice(1000000000) | list }}", SPENT),
    "sort": (MANY + "{% set y = range(99999) | sort %}{% endfor %}", "more than"),
    "sum of lists": ("{{ ([range(1000) | list] * 100000) | sum(start=[]) }}", "more than"),
    "a list that is printed": ("{{ ['x' * 1000000] * 100000 }}", "more than"),
    "a list that holds another twice": (DAG + "{% endfor %}{{ n.x }}", "as it would be printed"),
    "the same, as JSON": (DAG + "{% endfor %}{{ n.x | tojson }}", "as it would be printed"),
    "the same, compared": (DAG + "{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x == n.y }}", "as it would be printed"),
    "the same, as a key": (DAG.replace("[n.x, n.x]", "(n.x, n.x)") + "{% endfor %}{{ {n.x: 1} }}", "more than"),
    "indented JSON": ("{{ [[[1]]] | tojson(indent=1000000000) }}", SPENT),
    "digits of a rounded number": ("{{ 1.5 | round(1000000000, 'ceil') }}", "rounds to"),
    "a product of integers": (
        "{% set n = namespace(x=9) %}" + MANY + "{% set n.x = n.x * n.x %}{% endfor %}",
        "multiplies integers",
    ),
    "bytes of an integer": ("{{ (1).to_bytes(1000000000, 'big') }}", "extends"),
    "parts": ("{{ ('a ' * 30000000).split() | length }}", SPENT),
    "characters": (LONG + "{{ x | list | length }}", SPENT),
    "a slice in a loop": (LONG + MANY + "{% set y = x[1:] %}{% endfor %}", SPENT),
    "a search in a loop": (LONG + MANY + "{% set y = 'y' in x %}{% endfor %}", SPENT),
    "a method in a loop": (LONG + MANY + "{% set y = x.upper() %}{% endfor %}", SPENT),
    "a backward search": ("{{ ('a' * 1000000).rfind('b' ~ 'a' * 500000) }}", SPENT),
    "texts that are kept": (
        "{% set n = namespace(x=[]) %}" + MANY + "{% set n.x = n.x + ['x' * 9999999 ~ i] %}{% endfor %}",
        SPENT,
    ),
    "a block that is captured": (LONG + "{% set y %}" + MANY + "{{ x }}{% endfor %}{% endset %}", SPENT),
    "text that is captured": ("{% set y %}" + MANY * 2 + "abcd" * 9999 + "{% endfor %}{% endfor %}{% endset %}", SPENT),
    "text of a block that is called": (
        "{% set n = namespace(x=[]) %}"
        + BLOCK.format("y" * 100000 + "{{ '' }}" + "y" * 100000)
        + "{% for i in range(6000) %}"
        + "{% set n.x = n.x + [self.b()] %}{% endfor %}",
        SPENT,
    ),
    "a block that is called": (
        BLOCK.format("{%set x=1%}" * 1200) + MANY * 2 + "{% set x = self.b() %}" + ENDS,
        "more than 1,000,000 steps",
    ),
    "a macro": ("{% macro m() %}" + MANY + "{{ 'x' * 1000000 }}{% endfor %}{% endmacro %}{{ m() }}", SPENT),
    "an odd encoding": ("{{ ('x' * 1000000 ~ 'é').encode('punycode') }}", "encodes text"),
    "the same, decoded": ("{{ ('a' * 900000).encode().decode('punycode') }}", "decodes text"),
    "the same, by name": ("{{ ('a' * 900000).encode().decode(encoding='punycode') }}", "decodes text"),
    "a translation by a list": ("{% set y = ('\\x00' * 20000).translate(['y' * 60000]) %}", "translates"),
    "the same, by a tuple": ("{% set y = ('\\x00' * 20000).translate(('y' * 60000,)) %}", "translates"),
    "the same, by what else has items": ("{% set y = 'x'.translate({}.items()) %}", "translates text by a"),
    "pairs within pairs, as keys": (PAIRS, "as it would be printed"),
    "arguments of macros within one another, as a key": (VARARGS + "{{ {n.x: 1} }}", "as it would be printed"),
    "the same, looked up": (VARARGS + "{{ messages[n.x] }}", "as it would be printed"),
    "the same, as a filter's name": (VARARGS + "{{ n.x is filter }}", "as it would be printed"),
    "the same, watched by a loop": (
        DAG + "{% endfor %}{% for v in [n.x, n.x] %}{{ loop.changed(v) }}{% endfor %}",
        "as it would be printed",
    ),
    "deep tuples, as a key": (
        VARARGS.replace("n.x, n.x", "n.x").replace("40", "9999") + "{{ {n.x: 1} }}",
        "nested more than 2,000 deep",
    ),
    "a long integer, summed": (HEX + "{{ ([n] * 10000) | sum }}", INTEGER),
    "a long integer, less": (HEX + MANY + "{% set y = n - i %}{% endfor %}", INTEGER),
    "a long integer of bytes": ("{{ (0).from_bytes(('x' * 1000000).encode(), 'big') // 7 }}", INTEGER),
    "a long integer in the source": ("{{ 0x" + "f" * 9999 + " // 7 }}", INTEGER),
    "quotients": (NEAR + "{% set y = n // m %}" + ENDS, SPENT),
    "remainders": (NEAR + "{% set y = n is divisibleby(m) %}" + ENDS, SPENT),
    "negatives": (NEAR + "{% set y = (-n) | abs %}" + ENDS, SPENT),
    "rounded integers": (NEAR + "{% set y = n | round(-400) %}" + ENDS, SPENT),
    "a range of long integers": ("{% set n = 2 ** 64 %}{{ range(n, n + 99999) | list }}", "more than 63 bits"),
    "a long word that is wrapped": ("{{ ('x' * 900000) | wordwrap(1) }}", SPENT),
    "rounds that a filter leaves out": (
        MANY + "{% for i in range(99999) if false %}{% endfor %}{% endfor %}",
        "more than 1,000,000 steps",
    ),
    "values that are kept": (
        "{% set n = namespace(x=1) %}" + MANY * 2 + "{% set n.x = 1 %}" * 20 + ENDS,
        SPENT,
    ),
    "calls": ("{% set c = cycler(1) %}" + MANY * 2 + "{% set y = c.next() %}" + ENDS, SPENT),
    "blocks that are called": (CALLS, SPENT),
    "keys": (MANY * 2 + "{% set y = [" + "messages[0].role, " * 20 + "] %}" + ENDS, SPENT),
    "attributes that are not there": (MANY * 2 + "{% set y = [" + "i.x, " * 20 + "] %}" + ENDS, SPENT),
    "attributes of a loop": (MANY * 2 + "{% set y = [" + "loop.index, " * 20 + "] %}" + ENDS, SPENT),
    "methods of a mapping": ("{% set d = {} %}" + MANY * 2 + "{% set y = [" + "d.items, " * 60 + "] %}" + ENDS, SPENT),
    "the same, not for templates": (
        "{% set d = {} %}" + MANY * 2 + "{% set y = [" + "d.pop, " * 60 + "] %}" + ENDS,
        SPENT,
    ),
    "formats of a text": ("{% set x = 'x' %}" + MANY * 2 + "{% set y = [" + "x.format, " * 60 + "] %}" + ENDS, SPENT),
    "the same, by key": ("{% set x = 'x' %}" + MANY * 2 + "{% set y = [" + "x['format'], " * 60 + "] %}" + ENDS, SPENT),
    "formats of a text that is escaped": (
        "{% set x = 'x' | e %}" + MANY * 2 + "{% set y = [" + "x.format(), " * 60 + "] %}" + ENDS,
        SPENT,
    ),
    "lists": (MANY * 2 + "{% set y = [" + "[], " * 300 + "] %}" + ENDS, SPENT),
    "mappings": (MANY * 2 + "{% set y = [" + "{}, " * 300 + "] %}" + ENDS, SPENT),
    "lists of lists": (MANY * 2 + "{% set y = [" + "[[], []], " * 300 + "] %}" + ENDS, SPENT),
    "tuples": (MANY * 2 + "{% set y = [" + "('a', 'b'), " * 60 + "] %}" + ENDS, SPENT),
    "attributes by key": (
        "{% set n = namespace(a=1) %}" + MANY * 2 + "{% set y = [" + "n['a'], " * 60 + "] %}" + ENDS,
        SPENT,
    ),
    "short texts that are indented": (MANY * 2 + "{% set y = [" + "'a' | indent, " * 60 + "] %}" + ENDS, SPENT),
    "short texts that are replaced in": (
        MANY * 2 + "{% set y = [" + "'a' | replace('a', 'b'), " * 60 + "] %}" + ENDS,
        SPENT,
    ),
    "short texts that are repeated": (MANY * 2 + "{% set y = [" + "'a' * 2, " * 60 + "] %}" + ENDS, SPENT),
    "names that are not there": (MANY * 2 + "{% set y = [" + "u, " * 60 + "] %}" + ENDS, SPENT),
    "tests": (MANY * 2 + "{% set y = [" + "i is iterable, " * 20 + "] %}" + ENDS, SPENT),
    "loops in a loop": (MANY * 2 + "{% for j in [] %}{{ loop.index }}{% endfor %}" * 9 + ENDS, SPENT),
    "macros in a loop": (MANY * 2 + "{% macro a() %}{% endmacro %}" * 9 + ENDS, SPENT),
    "keys of characters": (LONG + "{% set y = {}.fromkeys(x) %}", SPENT),
    "a table of characters": (LONG + "{% set y = x.maketrans(x, x) %}", SPENT),
    "an attribute of attributes": ("{{ (['a'] * 9999) | map(attribute='0.' * 9999 ~ '0') | list }}", SPENT),
    "attributes of numbers": ("{{ (range(9999) | list) | groupby('real' ~ '.real' * 999) }}", SPENT),
    "attributes that are split for each list": (
        "{{ ([['a']] * 99999) | map('map', attribute='0.' * 500 ~ '0') | list }}",
        SPENT,
    ),
    "tuples within one another, as a name of a filter": (VARARGS + "{{ [1] | map(n.x) }}", "as it would be printed"),
    "the same, as an attribute": (VARARGS + "{{ [{}] | map(attribute=n.x) | list }}", "as it would be printed"),
    "the same, as the name of one": (VARARGS + "{{ {} | attr(n.x) }}", "as it would be printed"),
    "attributes by a filter": (MANY * 2 + "{% set y = i | attr('x') %}" + ENDS, SPENT),
    "deep fields of format": (
        "{% set f = '{0' ~ '[0]' * 400000 ~ '}' %}" + MANY + "{{ f.format('a') }}{% endfor %}",
        SPENT,
    ),
    "deep fields of format_map": (
        "{% set f = '{a' ~ '[0]' * 400000 ~ '}' %}" + MANY + "{{ f.format_map({'a': 'a'}) }}{% endfor %}",
        SPENT,
    ),
    "a format without fields": ("{{ ('x ' * 30000000) % () }}", SPENT),
    "a format of signs": (MANY + "{{ ('=' * 200000) % () }}{% endfor %}", SPENT),
    "characters that are trimmed": ("{{ ('é' * 2000000) | trim('b' * 2000000 ~ 'é') }}", SPENT),
    "characters that are trimmed of many": (
        "{{ (['é' * 999] * 999) | map('trim', 'b' * 999999 ~ 'é') | list }}",
        SPENT,
    ),
    "characters that are stripped": ("{{ ('ā' * 200000).lstrip('š' * 200000 ~ 'ā') }}", SPENT),
    "a search for what is nearly there": (NEARLY + "{% set z = x.find(y) %}" + ENDS, SPENT),
    "a test for what is nearly there": (NEARLY + "{% set z = y is in x %}" + ENDS, SPENT),
    "a replacement of what is nearly there": (NEARLY + "{% set z = x.replace(y, '') %}" + ENDS, SPENT),
    "a search in what iterates": (SIMILAR + "{{ c in (l | reverse) }}", SPENT),
    "the same, that it is not there": (SIMILAR + "{{ c not in (l | map('string')) }}", SPENT),
    "the same, as a test": (SIMILAR + "{{ c is in (l | select('string')) }}", SPENT),
    "many prefixes": (
        "{% set n = namespace() %}{% macro m() %}{% set n.y = varargs %}{% endmacro %}{% set x = 'a' * 999999 %}"
        "{{ m(*(['a' * 999998 ~ 'b'] * 1000)) }}" + MANY + "{{ x.startswith(n.y) }}{% endfor %}",
        SPENT,
    ),
    "keys of one hash": (SAME_HASH + "{% set y = {}.fromkeys(n.x) %}", "more than 64 keys"),
    "the same, of pairs": (SAME_HASH + "{% set y = dict(n.x | batch(1)) %}", "more than 64 keys"),
    "the same, in a set": (SAME_HASH + "{% set y = ({}.keys() - []).union(n.x) %}", "more than 64 keys"),
    "the same, of a view": (SAME_HASH + "{% set y = n.x - {}.keys() %}", "more than 64 keys"),
    "the same, which are unique": (SAME_HASH + "{{ n.x | unique | list }}", "more than 64 keys"),
    "the same, of attributes": (
        SAME_HASH
        + "{{ n.x | map('string') | list | unique(attribute=0) | list }}{{ n.x | batch(1) | unique(attribute=0) }}",
        "more than 64 keys",
    ),
    "the same, written": ("{{ {" + ",".join(f"{i * (2**61 - 1)}:1" for i in range(999)) + "} }}", "more than 64 keys"),
    "a deep list, as pprint has it": (DEEP + "{{ n.x | pprint }}", "prints a list"),
    "a deep list of objects, as pprint has it": (
        DEEP.replace("'a ' * 500000", "range(9999) | list") + MANY + "{% set y = n.x | pprint %}{% endfor %}",
        "more than",
    ),
    "a deep list, printed": (DEEP + MANY + "{% set y = n.x ~ '' %}{% endfor %}", "prints a list"),
    "a less deep list, printed": (
        DEEP.replace("400", "20") + MANY + "{% set y = n.x | string %}{% endfor %}",
        SPENT,
    ),
    "a deep list, as indented JSON": (
        DEEP.replace("'a ' * 500000", "range(9999) | list") + MANY + "{% set y = n.x | tojson(indent=0) %}{% endfor %}",
        SPENT,
    ),
    "characters that are escaped where a list is printed": ("{{ ['\\x00' * 60000000] }}", "prints a list"),
    "a join of what is escaped": ("{{ ('a' | e) + '&' * 60000000 }}", "joins"),
    "a replacement that is escaped": ("{{ ('a' | e).replace('a', '&' * 60000000) }}", "escapes"),
    "a long integer, printed": (NEAR + "{% set y = n ~ '' %}" + ENDS, SPENT),
    "a long integer, read": (MANY * 2 + "{% set y = ('1' * 1200) | int %}" + ENDS, SPENT),
    "many values": ("{{ a }}" * 37440, TOKENS),
    "many macros": ("{%macro a()%}{%endmacro%}" * 10000, TOKENS),
    "many conditions": ("{%if a%}{%endif%}" * 14000, TOKENS),
    "comparisons within one another": ("{{ " + "1<(" * 30 + "1" + ")<1" * 30 + " }}", "within one another"),
    "wide characters that are repeated": ("{% set x = '🙂' * 30000000 %}" * 4, SPENT),
    "wide characters that are joined": (WIDE + "{% set y, z, v = x + x, x + x, x + x %}", SPENT),
    "the same, printed": (WIDE + "{{ x }}" * 4, SPENT),
    "the same, captured": (WIDE + "{% set y %}{{ x }}{{ x }}{% endset %}" * 4, SPENT),
    "text that one wide character makes wide": (
        "{% set x = 'x' * 30000000 %}" + "{% set y %}{{ x }}{{ '🙂' }}{% endset %}" * 3,
        SPENT,
    ),
    "the same, of a list": ("{{ ['x' * 40000000, '🙂'] | join }}" * 2, SPENT),
    "the same, of %c": ("{% set x = '%99999c%99999c' % (128578, 128578) %}" * 400, SPENT),
    "wide characters that are padded": ("{% set x = '🙂'.ljust(60000000) %}" * 4, SPENT),
    "the same, by a filter": ("{% set x = '🙂' | center(60000000) %}" * 4, SPENT),
    "wide characters that are expanded": ("{% set x = ('🙂' ~ '\t' * 60).expandtabs(1000000) %}" * 4, SPENT),
    "wide characters in the place of others": ("{% set x = ('a' * 9999999).replace('a', '🙂' * 6) %}" * 3, SPENT),
    "names that are written for each include": (MANY_NAMES + "{%include x1%}" * 1200, f"line 1: .*{CANNOT}include"),
    "the same, of other names": (MANY_NAMES.replace("x", "x" * 100) + "{%include x%}" * 300, f"{CANNOT}include"),
    "the same, of imports": (MANY_NAMES + "{%import x1 as y with context%}" * 600, f"{CANNOT}import"),
    "the same, from there": (MANY_NAMES + "{%from x1 import y with context%}" * 500, f"{CANNOT}from"),
    "the same, of what it extends": (MANY_NAMES + "{%extends x1%}" * 900, f"{CANNOT}extends"),
    "the same, of blocks": (
        MANY_NAMES + "".join(f"{{%block b{number} scoped%}}{{%endblock%}}" for number in range(400)),
        f"{CANNOT}block … scoped",
    ),
    "text that is escaped where it is printed": (
        "{% autoescape true %}{{ '&' * 60000000 }}{% endautoescape %}",
        f"{CANNOT}autoescape",
    ),
    "autoescape in a loop": (MANY * 2 + "{%autoescape i%}{%endautoescape%}" * 500 + ENDS, f"{CANNOT}autoescape"),
    "a long template": ("{{ 1 }}" * (MAX_SOURCE_CHARS // 7 + 1), "characters, more than"),
}


@pytest.fixture(autouse=True, scope="module")
def environment() -> None:
    """What is imported for the first template, and takes longer than most attacks."""
    compile_template("{{ 1 }}")


@pytest.mark.parametrize(("template", "problem"), ATTACKS.values(), ids=ATTACKS)
def test_an_attack_ends_within_a_second(template: str, problem: str) -> None:
    """Of CPU, in a quarter of a gigabyte at the default limits, with an error that says what it was."""
    before = begin_peak()
    with cpu_within(1), pytest.raises((OverflowError, ValueError), match=problem):
        compile_template(template).render({"messages": [{"role": "user", "content": "hello"}]}, MAX_CHARS)
    assert peak() - before < 256 << 20


@pytest.mark.parametrize("length", [20000000, 50000000])
def test_marks_make_no_text_wide_for_nothing(length: int) -> None:
    """They are wide characters, and what they stand around becomes as wide."""
    marked = "{{% set y{} %}}{{% generation %}}{{{{ x }}}}{{% endgeneration %}}{{% endset %}}"
    template = f"{{% set x = 'x' * {length} %}}" + "".join(map(marked.format, range(10)))
    before = begin_peak()
    with cpu_within(1), pytest.raises(OverflowError, match=SPENT):
        compile_template(template).render_marked({}, MAX_CHARS)
    assert peak() - before < 256 << 20


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ strftime_now('%999d' * 1000000) }}", "more than 1,000 characters"),
        ("{{ strftime_now('%c' * 10000000) }}", "more than 1,000 characters"),
        ("{{ strftime_now('%999999999d') }}", "with a width"),
        ("{{ strftime_now('%%%-_^#999999999d') }}", "with a width"),
        (MANY * 2 + "{% set x = strftime_now('%c' * 500) %}" + ENDS, SPENT),
    ],
)
def test_an_attack_by_the_day_ends_within_a_second(tmp_path: Path, template: str, problem: str) -> None:
    """Where one is given."""
    tokenizer = chat_tokenizer(tmp_path, template)
    before = begin_peak()
    renderer = ChatRenderer(tokenizer, template_kwargs={"strftime_now": "2025-06-01"})
    with cpu_within(1), pytest.raises(ValueError, match=problem):
        renderer.render([{"role": "user", "content": "hello"}])
    assert peak() - before < 256 << 20


@pytest.mark.parametrize(
    "expression",
    [
        "'%5d|%-5s|%.2f' % (1, 'a', 1.5)",
        "'%(a)s' % {'a': 1}",
        "'{:>5}{b!r:10}'.format(1, b='x')",
        "'{a}'.format_map({'a': 1})",
        "1 < 2 < 3 and not 1 > 2, 'a' in 'abc', 'k' in {'k': 1}, 1 not in [2], none == false",
        "'abcdef'[1:4], [1, 2, 3][::-1], 'abc'[-1], (1, 2)[0]",
        "[3, 1, 2] | sort, [1, 2, 3] | batch(2, 0) | list, [1, 2, 3] | slice(2) | list",
        "'a b  c'.split(), 'a,b'.split(',', 1), 'a\nb'.splitlines(), 'a-b'.partition('-')",
        "{'a': [1, {'b': 'é'}]} | tojson, {'b': 1, 'a': 2} | tojson(indent=2)",
        "'x' | center(5), 'a\nb' | indent(2), 'aa' | replace('a', 'b', 1), ' x ' | trim, ['a', 1] | join('-')",
        "[1, 2] | map('string') | list, [{'a': 1}] | selectattr('a', 'eq', 1) | list, [1, 1] | unique | list",
        "range(3) | sum, 1.26 | round(1), [1, 2] + [3], (1,) + (2,), 'ab' * 2, 2 * [1], 7 % 3, 2 ** 5",
        "'aba'.replace('a', 'b', 1), 'é'.encode('utf-8') | string, 'é'.encode().decode('utf-8')",
        "'ab'.translate({97: 'x'}), 'ab'.translate({}.fromkeys([97])), '\\x00b'.translate(['yz']), 'a'.translate('b')",
        "'x'.join(['a', 'b']), 'aXb'.lower(), 'x'.rjust(3), '<' | e ~ '>'",
        "{}.fromkeys([1]), {}.fromkeys('ab'), {'a': 1}['a'], {1 + 1: 2}, [1, 2, 3][-1], [1, 2][1 - 1], -(1 + 1), -1.5",
        "7 // 2, 7 / 2, 7 - 2, 5 is divisibleby(5), 1 < 2 < 1, 3 is odd, 'ff' | int(0, 16), range(1, 9, 3) | list",
        "1e400, -1e400, [1e400], {'a': 1e400}, 1e400 > 1, 1e400 | string, -1e400 ~ '', 1e308 * 10, +1e400, [1][:1]",
        "{'a': 1}.keys() - ['a'], {'a': 1}.keys() - (['b'] | map('lower')), dict([['a', 1]]), dict([('b', 2)] | list)",
        "{" + ", ".join(f"'{i}': {i}" for i in range(99)) + "}, [{'a': 1}, {'a': 1}] | unique(attribute='a') | list",
        "['A', 'a', 'B'] | unique | list, ['A', 'a'] | unique(true) | list",
        "1 in ([3, 1, 2] | reverse), 4 not in ([3] | select), 1 is in ([3, 1] | select), '1' in ([1] | map('string'))",
        "'b' is in 'abc', 'aXa'.strip('a'), 'aXa' | trim('a'), 'abab'.rfind('b')",
        "dict(a=1).items() | list, namespace(a=1).a, messages[0].content is string, 5 is in [5]",
    ],
)
def test_what_is_measured_gives_what_transformers_gives(expression: str) -> None:
    """In texts, where it is kept, and in loops."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    source = f"{{{{ ({expression}) }}}}{{% set y %}}{{{{ ({expression},) }}}}{{% endset %}}{{{{ y }}}}"
    source += f"{{% for i in [1, 2] %}}{{{{ ({expression}) }}}}{{% endfor %}}"
    variables = {"messages": [{"role": "user", "content": "hello"}]}
    assert compile_template(source).render(variables, MAX_CHARS) == _compile_jinja_template(source).render(variables)
