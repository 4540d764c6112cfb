"""Standard decoding against Confident Decoding on the tasks of lm-evaluation-harness, paired question by question.

`settings` reads what is compared, `sharing` decides which engine answers for which setting, `child` runs an engine in
a process of its own, `folder` keeps what is finished, `paired` and `report` make the numbers.
"""
