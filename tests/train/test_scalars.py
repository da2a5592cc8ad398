from omnizen.events import StepEvent
from omnizen.train.scalars import ScalarWriter


def test_tensorboard_reads_what_the_steps_were(tmp_path):
    scalars = ScalarWriter(tmp_path / "tb")
    for i in range(3):
        scalars.observe(
            StepEvent(step=i, start_s=i, step_s=0.5, wire_s=0.25, loss=3.0 - i, samples=8, rx_bytes=100 + i)
        )
    scalars.observe(StepEvent(step=3, start_s=3.0, step_s=0.5))
    scalars.close()
    scalars.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(tmp_path / "tb"))
    log.Reload()
    read = {tag: [(e.step, e.value) for e in log.Scalars(tag)] for tag in log.Tags()["scalars"]}
    assert read["loss"] == [(0, 3.0), (1, 2.0), (2, 1.0)]
    assert read["traffic/received_bytes"][:3] == [(0, 100.0), (1, 101.0), (2, 102.0)]
    assert read["step/wire_seconds"][0] == (0, 0.25)
    assert read["step/samples_per_s"] == [(0, 16.0), (1, 16.0), (2, 16.0)]
    assert len(read["step/seconds"]) == 4
