"""Use cases: one public function per thing a person does. The API and the pages call the same ones."""
