"""Watch a deployment: probes, detectors of a stated false-alarm interval, named causes."""
