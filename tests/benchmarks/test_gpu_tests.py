from pathlib import Path

from benchmarks.gpu_tests import outcome

REPORT = """<testsuites><testsuite tests="5">
<testcase classname="a" name="t1" time="1.5"/>
<testcase classname="a" name="t2" time="0.5"><failure message="no">long text</failure></testcase>
<testcase classname="b" name="t3" time="3.25"><error message="broke">long text</error></testcase>
<testcase classname="b" name="t3" time="3.25"><error message="teardown">text</error></testcase>
<testcase classname="b" name="t4"><skipped message="needs 2 GPUs; 1 here"/></testcase>
<testcase classname="b" name="t5"><skipped message="needs 2 GPUs; 1 here"/></testcase>
</testsuite></testsuites>"""


def test_what_passed_failed_and_was_skipped_is_told_apart(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert outcome(report) == {
        "passed": 1,
        "failed": ["a::t2", "b::t3"],
        "skipped": {"needs 2 GPUs; 1 here": 2},
        "slowest_s": {"b::t3": 3.2, "a::t1": 1.5, "a::t2": 0.5, "b::t4": 0.0, "b::t5": 0.0},
    }
