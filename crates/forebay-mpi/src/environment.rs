//! The environment: what launchers tell the processes that they start.

/// What a launcher told this process.
///
/// ```
/// use forebay_mpi::Launched;
///
/// let variables = [("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
/// let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
/// let launched = Launched::from_variables(variable).unwrap();
/// assert_eq!((launched.processes, launched.on_this_machine), (4, Some(2)));
/// assert_eq!(Launched::from_variables(|_| None), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Launched {
    /// The number of processes.
    pub processes: usize,
    /// The number of processes on this machine, if the launcher says it.
    pub on_this_machine: Option<usize>,
    /// The launcher.
    pub launcher: Launcher,
}

/// The launcher that started a process, which determines the library that the process needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// The launcher of Open MPI.
    OpenMpi,
    /// The launcher of MPICH or one of its descendants.
    Mpich,
    /// The launcher of Slurm, with PMIx.
    Slurm,
}

/// The launchers' variables for the number of processes, in total and on this machine. Slurm's own variables do not suffice: every job step
/// has them, whether or not it uses MPI.
const VARIABLES: [(Launcher, &str, &str); 3] = [
    (Launcher::OpenMpi, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    // Also Intel MPI, and srun with PMI or PMI-2.
    (Launcher::Mpich, "PMI_SIZE", "MPI_LOCALNRANKS"),
    // PMIx itself does not give a size.
    (Launcher::Slurm, "SLURM_STEP_NUM_TASKS", "SLURM_TASKS_PER_NODE"),
];

impl Launched {
    /// Returns what the variables of a process say; `None` if no MPI launcher started it.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Option<Launched> {
        let number =
            |name: &str| variable(name)?.split(['(', ',']).next()?.parse::<usize>().ok().filter(|&number| number > 0);
        let of = |&(launcher, all, local): &(Launcher, &str, &str)| {
            if launcher == Launcher::Slurm && variable("PMIX_RANK").is_none() {
                return None;
            }
            // With PMI and PMI-2, srun sets no local number except that of the step.
            let on_this_machine = number(local).or_else(|| number("SLURM_STEP_TASKS_PER_NODE"));
            Some(Launched { processes: number(all)?, on_this_machine, launcher })
        };
        VARIABLES.iter().find_map(of)
    }
}

/// Returns what the launcher of this process told it; `None` if no MPI launcher started it.
pub fn started_by() -> Option<Launched> {
    Launched::from_variables(|name| std::env::var(name).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Option<Launched> {
        Launched::from_variables(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn each_launcher_is_known_and_nothing_else() {
        let launched = |launcher, processes, on_this_machine| Some(Launched { processes, on_this_machine, launcher });
        assert_eq!(of(&[("OMPI_COMM_WORLD_SIZE", "2")]), launched(Launcher::OpenMpi, 2, None));
        assert_eq!(of(&[("PMI_SIZE", "2"), ("PMI_RANK", "0")]), launched(Launcher::Mpich, 2, None));
        assert_eq!(of(&[("PMI_SIZE", "8"), ("MPI_LOCALNRANKS", "4")]), launched(Launcher::Mpich, 8, Some(4)));
        let step = [("PMI_SIZE", "8"), ("SLURM_STEP_TASKS_PER_NODE", "4(x2)")];
        assert_eq!(of(&step), launched(Launcher::Mpich, 8, Some(4)));
        let slurm = [("SLURM_STEP_NUM_TASKS", "6"), ("SLURM_TASKS_PER_NODE", "3(x2)")];
        assert_eq!(of(&slurm), None, "a job step without MPI");
        assert_eq!(of(&[&slurm[..], &[("PMIX_RANK", "1")]].concat()), launched(Launcher::Slurm, 6, Some(3)));
        assert_eq!(of(&[("OMPI_COMM_WORLD_SIZE", "many")]), None);
        assert_eq!(of(&[("PMI_SIZE", "0")]), None);
    }
}
