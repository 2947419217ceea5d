"""Pod templates of manifests against profiles of nodes, before a cluster gets them: ``alignup check``.

``template_check`` finds what is wrong, ``ignored_findings`` leaves out what is accepted, ``report_formats`` writes the
rest for people, programs, code scanning (SARIF) and GitHub.
"""
