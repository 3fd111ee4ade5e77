"""Packaging of dlspawner. The version is the tag's; pyproject.toml sets tools, constraints.txt has exact versions."""

from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

SHARED = ("templates/*/*", "hub_config/*.py", "hub_config/*.yaml")


class BuildWithShared(build_py):
    """Adds the templates and the Hub's configuration to what is installed, as dlspawner/share (see dlspawner.ROOT)."""

    def run(self):
        super().run()
        for file in () if self.editable_mode else (file for glob in SHARED for file in Path().glob(glob)):
            target = Path(self.build_lib, "dlspawner", "share", file)
            self.mkpath(str(target.parent))
            self.copy_file(str(file), str(target))


setup(
    name="dlspawner",
    cmdclass={"build_py": BuildWithShared},
    description="JupyterHub for deep-learning clusters on Kubernetes",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="BSD-3-Clause",
    python_requires=">=3.11",
    # What tests were run on: 3.11 all of them, the others the unit tests and a few of the components'.
    classifiers=[f"Programming Language :: Python :: {version}" for version in ("3.11", "3.12", "3.13", "3.14")],
    packages=find_packages(include=["dlspawner", "dlspawner.*", "ssh_gateway", "ssh_gateway.*"]),
    package_data={
        "dlspawner.manager": ["db/migrations/*", "db/migrations/versions/*", "http/static/*"],
        "dlspawner.spawner": ["files/*"],
        "": ["py.typed"],
    },
    install_requires=[
        "jupyterhub>=5.5,<7",
        "jupyterhub-kubespawner>=7.1,<8",
        "traitlets>=5.14",
        "tornado>=6.4",
        "kubernetes>=37,<38",
        "aiohttp>=3.9",
        "aiosmtplib>=3",
        "prometheus_client>=0.20",
        "pydantic>=2.8",
        "asyncssh>=2.24.1,<2.25",
        "cryptography>=42",
        "jinja2>=3.1",
        "PyYAML>=6",
        "shtab>=1.7,<2",
        "SQLAlchemy>=2.0",
        "alembic>=1.13",
    ],
    extras_require={
        # The embedded cluster, and what a job runs: there from this environment, on Kubernetes from the job image.
        "jobs": [
            "wsproto>=1.2",
            "jupyterlab>=4.4",
            "jupyter-server-proxy>=4.6",
            "tensorboard>=2.19",
            "setuptools>=77,<81",
        ],
        "postgresql": ["psycopg[binary]>=3.2"],
        "tracing": ["opentelemetry-sdk>=1.30", "opentelemetry-exporter-otlp-proto-http>=1.30"],
        "test": [
            "psycopg[binary]>=3.2",
            "opentelemetry-sdk>=1.30",
            "opentelemetry-exporter-otlp-proto-http>=1.30",
            "requests>=2.32",
            "setuptools-scm>=8",
            "pytest>=8",
            "pytest-asyncio>=1",
            "pytest-randomly>=3",
            "pytest-rerunfailures>=16",
            "pytest-xdist>=3",
            "hypothesis>=6",
            "jsonschema>=4",
            "playwright>=1.50",
            "axe-playwright-python>=0.1.4",
            "tensorboardX>=2.6",
            "aiosmtpd>=1.4.6",
            "paramiko>=4",
            "ssh-audit>=3.3",
            "oauthenticator>=17",
            "jupyterhub-ldapauthenticator>=2",
            "asciinema>=2.4,<3",
            "grpcio>=1.60",
        ],
        "lint": ["ruff>=0.14", "mypy>=1.18", "import-linter>=2", "types-PyYAML", "types-requests"],
    },
    entry_points={"console_scripts": ["dlspawner = dlspawner.cli:main", "ssh-gateway = ssh_gateway.app:main"]},
)
