"""What a process is made of, and the records of processes."""

from commandbus.domain.process.chain import Chain as Chain
from commandbus.domain.process.declaration import END as END
from commandbus.domain.process.declaration import Process as Process
from commandbus.domain.process.declaration import StartProcess as StartProcess
from commandbus.domain.process.declaration import WaitFor as WaitFor
from commandbus.domain.process.declaration import step as step
from commandbus.domain.process.values import ProcessCount as ProcessCount
from commandbus.domain.process.values import ProcessEvent as ProcessEvent
from commandbus.domain.process.values import ProcessEventType as ProcessEventType
from commandbus.domain.process.values import ProcessRecord as ProcessRecord
from commandbus.domain.process.values import ProcessStatus as ProcessStatus
from commandbus.domain.process.values import ProcessStep as ProcessStep
from commandbus.domain.process.values import StepStatus as StepStatus
from commandbus.operations.process_ends import EndProcessResult as EndProcessResult
from commandbus.operations.processes import CreateProcessBatchResult as CreateProcessBatchResult
from commandbus.operations.processes import ProcessStart as ProcessStart
from commandbus.operations.processes import StartProcessResult as StartProcessResult
