"""What the block benches share: bench tops, link drivers, the port checker, the model's side, the runner call."""
